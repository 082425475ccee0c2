#include "devices.hpp"

#include "hip.hpp"
#include "nodes.hpp"

#include <algorithm>
#include <cctype>

namespace probe {
namespace {

std::string pci_bus_id_of(int index)
{
    char id[32] = {};
    require(hipDeviceGetPCIBusId(id, sizeof id, index), "hipDeviceGetPCIBusId");
    std::string text = id;
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

Device describe(int index)
{
    hipDeviceProp_t properties{};
    require(hipGetDeviceProperties(&properties, index), "hipGetDeviceProperties");
    int clock_rate = 0;
    require(hipDeviceGetAttribute(&clock_rate, hipDeviceAttributeWallClockRate, index),
            "hipDeviceGetAttribute");

    const std::string pci_bus_id = pci_bus_id_of(index);
    return {
        .index = index,
        .name = properties.name,
        .gcn_arch = properties.gcnArchName,
        .pci_bus_id = pci_bus_id,
        .render_node = render_node_of("/", pci_bus_id),
        .total_memory = properties.totalGlobalMem,
        .wavefront_size = properties.warpSize,
        .compute_units = properties.multiProcessorCount,
        .integrated = properties.integrated != 0,
        .clock_rate = clock_rate,
    };
}

} // namespace

std::string Device::description() const
{
    char memory[32];
    std::snprintf(memory, sizeof memory, "%.1f GiB", static_cast<double>(total_memory) / (1U << 30U));
    return "device " + std::to_string(index) + ": " + name + ", " + gcn_arch + ", " + memory + ", PCI " +
           pci_bus_id + ", " + render_node.value_or("its render node is not here");
}

json::Value to_json(const Device& device)
{
    return json::Object()
        .add("index", device.index)
        .add("name", device.name)
        .add("gcn_arch", device.gcn_arch)
        .add("pci_bus_id", device.pci_bus_id)
        .add("render_node", device.render_node)
        .add("total_memory", device.total_memory)
        .add("wavefront_size", device.wavefront_size)
        .add("compute_units", device.compute_units)
        .add("integrated", device.integrated);
}

std::string version_text(int version)
{
    return std::to_string(version / 10'000'000) + "." + std::to_string(version / 100'000 % 100) + "." +
           std::to_string(version % 100'000);
}

std::vector<Device> find_devices()
{
    int count = 0;
    const hipError_t status = hipGetDeviceCount(&count);
    if (status != hipSuccess || count == 0) {
        Failure failure = why_no_gpu("/");
        failure.hip_error = hipGetErrorName(status);
        throw failure;
    }

    std::vector<Device> devices;
    for (int index = 0; index < count; ++index)
        devices.push_back(describe(index));
    return devices;
}

} // namespace probe
