#include "gpu.hpp"

#include "hip.hpp"
#include "names.hpp"

#include <algorithm>
#include <random>

namespace probe {
namespace {

std::vector<unsigned char> transfer(const std::vector<unsigned char>& sent)
{
    return DeviceBuffer<unsigned char>(sent).download();
}

std::vector<int> increment(const std::vector<int>& values, int count)
{
    DeviceBuffer<int> buffer(values);
    require(launch_increment(buffer.data(), count, nullptr), "rocbake_increment");
    return buffer.download();
}

std::vector<float> multiply(const std::vector<float>& a, const std::vector<float>& b,
                            const std::vector<float>& c, MatrixShape shape)
{
    DeviceBuffer<float> device_a(a);
    DeviceBuffer<float> device_b(b);
    DeviceBuffer<float> device_c(c);
    require(launch_matmul(device_a.data(), device_b.data(), device_c.data(), shape), "rocbake_matmul");
    return device_c.download();
}

unsigned sum(const std::vector<unsigned>& values, int blocks)
{
    const auto count = static_cast<unsigned>(values.size());
    const auto partial_count = static_cast<unsigned>(blocks);
    DeviceBuffer<unsigned> device_values(values);
    DeviceBuffer<unsigned> partial(partial_count);
    DeviceBuffer<unsigned> total(1);
    require(launch_reduce(device_values.data(), partial.data(), count, partial_count), "rocbake_reduce");
    require(launch_reduce(partial.data(), total.data(), partial_count, 1), "rocbake_reduce");
    return total.download().front();
}

} // namespace

const Backend kGpu{transfer, increment, multiply, sum};

Identification identify(const Device& device, const std::vector<std::string_view>& compiled_for)
{
    std::random_device entropy;
    const unsigned long long challenge = (static_cast<unsigned long long>(entropy()) << 32U) | entropy();

    DeviceBuffer<Identity> buffer(std::vector<Identity>(1));
    require(launch_identify(buffer.data(), challenge), "rocbake_identify");
    Identity identity = buffer.download().front();
    identity.target_id[sizeof identity.target_id - 1] = '\0';

    const std::string_view target = identity.target_id;
    const bool is_ours = std::find(compiled_for.begin(), compiled_for.end(), target) != compiled_for.end();
    const bool fits = is_ours && (is_generic(target) || names_device(target, device.gcn_arch));
    const long long ticks = identity.clock_end - identity.clock_begin;

    const auto json = [](std::string_view code_object, int lanes, bool answers,
                         bool clock_runs) -> json::Value {
        return json::Object()
            .add("code_object", code_object)
            .add("wavefront_size", lanes)
            .add("answers", answers)
            .add("clock_runs", clock_runs);
    };
    Finding finding{
        json(fits ? target : std::string_view(device.gcn_arch), device.wavefront_size, true, true),
        json(target, static_cast<int>(identity.lanes), identity.answer == answer_to(challenge), ticks > 0),
        "written by device code; its clock went on by " + std::to_string(ticks) + " ticks while it looked",
    };
    return {std::move(finding), identity};
}

// The producer stores late; the consumer adds one, and must have waited for the store.
Finding check_streams(const Device& device)
{
    constexpr int count = 4096;
    constexpr int stored = 42;
    constexpr int delay_milliseconds = 2;

    const Stream producer;
    const Stream consumer;
    Event begin;
    Event ready;
    DeviceBuffer<int> values(count);

    require(hipMemsetAsync(values.data(), 0, values.bytes(), producer.get()), "hipMemsetAsync");
    begin.record(producer);
    const long long ticks = static_cast<long long>(device.clock_rate) * delay_milliseconds;
    require(launch_store_late(values.data(), count, stored, ticks, producer.get()), "rocbake_store_late");
    ready.record(producer);

    ready.hold_back(consumer);
    require(launch_increment(values.data(), count, consumer.get()), "rocbake_increment");
    consumer.synchronize();
    ready.synchronize();

    const std::vector<int> got = values.download();
    int value = stored + 1;
    for (const int element : got)
        if (element != stored + 1)
            value = element;
    const double elapsed = begin.milliseconds_until(ready);
    const auto json = [](int the_value, bool time_passes) -> json::Value {
        return json::Object().add("value", the_value).add("time_passes", time_passes);
    };
    char detail[128];
    std::snprintf(detail, sizeof detail,
                  "one stream waited for the other; %.3f ms between the events, %d ms asked for", elapsed,
                  delay_milliseconds);
    return {json(stored + 1, true), json(value, elapsed > 0), detail};
}

} // namespace probe
