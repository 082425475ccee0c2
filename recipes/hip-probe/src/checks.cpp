#include "checks.hpp"

#include "hip.hpp"
#include "names.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>

namespace probe {
namespace {

// Values behind the ones a kernel may touch: they must come back as they were.
constexpr std::size_t kGuards = 64;
constexpr int kGuard = -12345;

// One 64-bit step of SplitMix, good enough to make every wrong element show.
std::uint64_t scramble(std::uint64_t number)
{
    number += 0x9e3779b97f4a7c15ULL;
    number = (number ^ (number >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    number = (number ^ (number >> 27U)) * 0x94d049bb133111ebULL;
    return number ^ (number >> 31U);
}

// FNV-1a: short enough to stand in a report where the values themselves would not.
template <typename T>
std::string fingerprint(const std::vector<T>& values)
{
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (std::size_t i = 0; i < values.size() * sizeof(T); ++i)
        hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
    char text[32];
    std::snprintf(text, sizeof text, "fnv1a:%016llx", static_cast<unsigned long long>(hash));
    return text;
}

// Byte for byte.
template <typename T>
Finding compare(const std::vector<T>& expected, const std::vector<T>& got, const std::string& what)
{
    std::size_t wrong = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
        if (std::memcmp(&expected[i], &got[i], sizeof(T)) != 0 && wrong++ == 0)
            first = i;

    std::string detail = what + ", all equal";
    if (wrong != 0)
        detail = what + ", " + std::to_string(wrong) + " differ, the first at " + std::to_string(first) +
                 ": expected " + std::to_string(expected[first]) + ", got " + std::to_string(got[first]);
    return {json::write(fingerprint(expected)), json::write(fingerprint(got)), detail};
}

Finding transfer(const Device&)
{
    constexpr std::size_t count = (1U << 20U) + 13;
    std::vector<unsigned char> sent(count);
    for (std::size_t i = 0; i < count; ++i)
        sent[i] = static_cast<unsigned char>(scramble(i));

    const DeviceBuffer<unsigned char> buffer(sent);
    return compare(sent, buffer.download(), std::to_string(count) + " bytes to the device and back");
}

Finding increment(const Device&)
{
    constexpr int count = 3;
    std::vector<int> values{1, 2, 3};
    std::vector<int> expected{2, 3, 4};
    values.resize(count + kGuards, kGuard);
    expected.resize(count + kGuards, kGuard);

    DeviceBuffer<int> buffer(values);
    require(launch_increment(buffer.data(), count, nullptr), "rocbake_increment");
    std::vector<int> got = buffer.download();

    const std::string detail =
        compare(expected, got, "3 values and " + std::to_string(kGuards) + " guards").detail;
    // The guards are shown only where they were touched.
    if (std::equal(expected.begin() + count, expected.end(), got.begin() + count)) {
        expected.resize(count);
        got.resize(count);
    }
    return {json::write(expected), json::write(got), detail};
}

// Integers of -8 to 8: every sum stays below 2^24, so that float is exact in whatever order it adds.
std::vector<float> small_integers(std::size_t count, std::uint64_t seed)
{
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(static_cast<int>(scramble(seed + i) % 17) - 8);
    return values;
}

Finding multiply(MatrixShape shape)
{
    const auto rows = static_cast<std::size_t>(shape.rows);
    const auto inner = static_cast<std::size_t>(shape.inner);
    const auto columns = static_cast<std::size_t>(shape.columns);
    const std::vector<float> a = small_integers(rows * inner, 1);
    const std::vector<float> b = small_integers(inner * columns, 1'000'000);

    const std::vector<float> untouched(rows * columns + kGuards, static_cast<float>(kGuard));
    std::vector<float> expected = untouched;
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t column = 0; column < columns; ++column) {
            float sum = 0;
            for (std::size_t k = 0; k < inner; ++k)
                sum += a[row * inner + k] * b[k * columns + column];
            expected[row * columns + column] = sum;
        }

    DeviceBuffer<float> device_a(a);
    DeviceBuffer<float> device_b(b);
    DeviceBuffer<float> device_c(untouched);
    require(launch_matmul(device_a.data(), device_b.data(), device_c.data(), shape), "rocbake_matmul");
    return compare(expected, device_c.download(),
                   std::to_string(rows) + "x" + std::to_string(inner) + " times " + std::to_string(inner) +
                       "x" + std::to_string(columns));
}

Finding matmul(const Device&) { return multiply({.rows = 64, .inner = 96, .columns = 128}); }

Finding matmul_edges(const Device&) { return multiply({.rows = 70, .inner = 45, .columns = 53}); }

Finding reduce(const Device&)
{
    constexpr unsigned count = 1'000'003;
    constexpr unsigned blocks = 61;
    std::vector<unsigned> values(count);
    for (unsigned i = 0; i < count; ++i)
        values[i] = static_cast<unsigned>(scramble(i));
    const unsigned expected = std::accumulate(values.begin(), values.end(), 0U);

    DeviceBuffer<unsigned> device_values(values);
    DeviceBuffer<unsigned> partial(blocks);
    DeviceBuffer<unsigned> total(1);
    require(launch_reduce(device_values.data(), partial.data(), count, blocks), "rocbake_reduce");
    require(launch_reduce(partial.data(), total.data(), blocks, 1), "rocbake_reduce");
    return {json::write(expected), json::write(total.download().front()),
            "the sum of " + std::to_string(count) + " numbers modulo 2^32, by " + std::to_string(blocks) +
                " blocks"};
}

// The producer stores late; the consumer adds one, and must have waited for the store.
Finding streams(const Device& device)
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

} // namespace

const std::vector<Check>& all_checks()
{
    static const std::vector<Check> checks{
        {"transfer", transfer},         {"increment", increment}, {"matmul", matmul},
        {"matmul-edges", matmul_edges}, {"reduce", reduce},       {"streams", streams},
    };
    return checks;
}

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

} // namespace probe
