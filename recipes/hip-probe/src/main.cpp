// hip-probe: the order of events. What each of them does stands in the files beside this one.

#include "checklist.hpp"
#include "devices.hpp"
#include "gpu.hpp"
#include "hip.hpp"
#include "hip_library.hpp"
#include "host.hpp"
#include "names.hpp"
#include "options.hpp"
#include "supervise.hpp"
#include "workloads.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#ifndef HIP_PROBE_COMPILED_FOR
#error "say for which GPU targets: -DHIP_PROBE_COMPILED_FOR='\"gfx1201,gfx1100\"'"
#endif

namespace probe {
namespace {

const std::vector<std::string_view>& compiled_for()
{
    static const std::vector<std::string_view> targets = split(HIP_PROBE_COMPILED_FOR, ',');
    return targets;
}

json::Value hip_versions()
{
    int runtime = 0;
    int driver = 0;
    // Not required: what matters is whether there is a device, and that is asked next.
    const bool has_runtime = hipRuntimeGetVersion(&runtime) == hipSuccess;
    const bool has_driver = hipDriverGetVersion(&driver) == hipSuccess;
    return json::Object()
        .add("runtime", has_runtime ? std::optional(version_text(runtime)) : std::nullopt)
        .add("driver", has_driver ? std::optional(version_text(driver)) : std::nullopt)
        .add("compiled_with", version_text(HIP_VERSION));
}

const Device& choose(const std::vector<Device>& devices, std::optional<int> wanted)
{
    const auto index = static_cast<std::size_t>(wanted.value_or(0));
    if (index >= devices.size())
        throw Failure(Verdict::usage, "no-such-device",
                      "--device " + std::to_string(index) + ": the last device is " +
                          std::to_string(devices.size() - 1),
                      "See them: hip-probe --list");
    return devices[index];
}

Failure not_compiled_for(const Device& device, const std::vector<Device>& devices, std::string hip_error)
{
    std::string hint = "Build hip-probe for " + device.gcn_arch.substr(0, device.gcn_arch.find(':'));
    for (const Device& other : devices)
        if (other.index != device.index && may_run_on(compiled_for(), other.gcn_arch))
            hint += ", or run it on " + other.name + ": --device " + std::to_string(other.index);
    return {Verdict::no_code_object, "no-code-object",
            "device " + std::to_string(device.index) + " (" + device.name + ", " + device.gcn_arch +
                ") cannot run this program, which was compiled for " HIP_PROBE_COMPILED_FOR,
            hint, std::move(hip_error)};
}

void require_code_object(const Device& device, const std::vector<Device>& devices)
{
    if (!may_run_on(compiled_for(), device.gcn_arch))
        throw not_compiled_for(device, devices, {});
    const hipError_t status = find_code_object();
    if (means_no_code_object(status))
        throw not_compiled_for(device, devices, hipGetErrorName(status));
    require(status, "hipFuncGetAttributes");
}

void run_on_gpu(const Options& options, Wire& wire)
{
    wire.begin("devices");
    wire.hip(hip_versions());
    const std::vector<Device> devices = find_devices();
    for (const Device& device : devices) {
        wire.device_found(to_json(device));
        say(device.description());
    }
    if (options.action == Action::list)
        return wire.end(Verdict::listed);

    const Device& device = choose(devices, options.device);
    wire.device_chosen(device.index);
    wire.begin("code-object");
    require(hipSetDevice(device.index), "hipSetDevice");
    require_code_object(device, devices);

    Checklist checks(wire, "");
    checks.perform("identity", [&] {
        Identification identification = identify(device, compiled_for());
        if (identification.finding.ok())
            wire.computed_on(json::Object()
                                 .add("kind", "gpu")
                                 .add("name", device.name)
                                 .add("gcn_arch", device.gcn_arch)
                                 .add("code_object", identification.identity.target_id)
                                 .add("wavefront_size", identification.identity.lanes)
                                 .add("clock_begin", identification.identity.clock_begin)
                                 .add("clock_end", identification.identity.clock_end));
        return std::move(identification.finding);
    });
    for (const Workload& workload : all_workloads())
        checks.perform(workload.name, [&] { return workload.run(kGpu); });
    checks.perform("streams", [&] { return check_streams(device); });
    checks.conclude(Verdict::pass);
}

// Calls nothing of HIP: even the question for its version opens /dev/kfd.
void run_on_host(Wire& wire)
{
    wire.begin("host");
    wire.hip(json::Object()
                 .add("runtime", hip_library_version())
                 .add("driver", std::nullopt)
                 .add("compiled_with", version_text(HIP_VERSION)));
    const std::optional<std::string> processor = processor_name("/");
    say(processor.value_or("a processor without a name") + " computes, and no GPU");

    Checklist checks(wire, "; the host computed");
    for (const Workload& workload : all_workloads())
        checks.perform(workload.name, [&] { return workload.run(kHost); });
    wire.computed_on(json::Object().add("kind", "host").add("name", processor));
    checks.conclude(Verdict::host);
}

int conclude(const Report& report)
{
    std::fputs(document(report, compiled_for()).c_str(), stdout);
    if (std::fflush(stdout) != 0) {
        say(std::string("cannot write the document to stdout: ") + std::strerror(errno));
        return entry_of(Verdict::runtime_error).exit_code;
    }
    const VerdictEntry& entry = entry_of(report.verdict);
    say(std::string(entry.name) + ": " + std::string(entry.meaning));
    return entry.exit_code;
}

} // namespace
} // namespace probe

int main(int argc, char** argv)
{
    using namespace probe;
    try {
        const Options options = parse_options({argv + 1, argv + argc});
        if (options.action == Action::help) {
            std::fputs(help_text().c_str(), stdout);
            return 0;
        }
        if (options.action == Action::version) {
            std::printf("hip-probe %s\n", std::string(kVersion).c_str());
            return 0;
        }
        const std::chrono::seconds timeout(options.timeout_seconds);
        if (options.action == Action::host) {
            speaker = "hip-probe on the host";
            return conclude(supervise(run_on_host, timeout, ""));
        }
        return conclude(
            supervise([&options](Wire& wire) { run_on_gpu(options, wire); }, timeout, kLookAtTheHost));
    } catch (const UsageError& error) {
        Report report;
        report.verdict = Verdict::usage;
        const Failure failure(Verdict::usage, "bad-option", error.message, "See hip-probe --help");
        say(failure);
        report.error = to_json(failure);
        return conclude(report);
    } catch (const std::exception& error) {
        say(error.what());
        return entry_of(Verdict::runtime_error).exit_code;
    }
}
