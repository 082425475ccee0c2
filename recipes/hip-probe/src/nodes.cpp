#include "nodes.hpp"

#include "names.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace probe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kComputeNode = "/dev/kfd";
constexpr const char* kRenderFolder = "/dev/dri";

fs::path below(const fs::path& root, const std::string& path)
{
    return root / fs::path(path).relative_path();
}

// Sorted names; a folder that is missing or closed to us has none.
std::vector<std::string> names_in(const fs::path& folder)
{
    std::vector<std::string> names;
    std::error_code error;
    for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error))
        names.push_back(entry->path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<std::string> render_names_in(const fs::path& folder)
{
    std::vector<std::string> names = names_in(folder);
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("render"); });
    return names;
}

std::vector<gid_t> groups_held()
{
    std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, getgroups(0, nullptr))));
    const int count = getgroups(static_cast<int>(groups.size()), groups.data());
    groups.resize(static_cast<std::size_t>(std::max(0, count)));
    groups.push_back(getegid());
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    return groups;
}

bool mode_permits(const struct stat& node)
{
    const std::vector<gid_t> groups = groups_held();
    if (geteuid() == 0)
        return true;
    if (geteuid() == node.st_uid)
        return (node.st_mode & 0600U) == 0600U;
    if (std::find(groups.begin(), groups.end(), node.st_gid) != groups.end())
        return (node.st_mode & 0060U) == 0060U;
    return (node.st_mode & 0006U) == 0006U;
}

// "owned by 0:992, mode 0660; this process is user 1000 with groups 44, 1000"
std::string ownership(const struct stat& node)
{
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", node.st_mode & 07777U);
    std::vector<std::string> groups;
    for (const gid_t group : groups_held())
        groups.push_back(std::to_string(group));
    return "owned by " + std::to_string(node.st_uid) + ":" + std::to_string(node.st_gid) + ", mode " + mode +
           "; this process is user " + std::to_string(geteuid()) + " with groups " + join(groups);
}

bool selinux_enforces(const fs::path& root)
{
    char state = '0';
    std::ifstream(below(root, "/sys/fs/selinux/enforce")) >> state;
    return state == '1';
}

Failure no_gpu(std::string reason, std::string message, std::string hint)
{
    return {Verdict::no_gpu, std::move(reason), std::move(message), std::move(hint)};
}

// 120001 is gfx1201, 90010 is gfx90a: two decimal digits each for minor and stepping,
// which the name writes in hexadecimal.
std::string target_name(unsigned version)
{
    char name[32];
    std::snprintf(name, sizeof name, "gfx%u%x%x", version / 10000, version / 100 % 100, version % 100);
    return name;
}

// The GPUs in the compute driver's topology that this process may see:
// a container sees those whose nodes it was given.
std::vector<std::string> targets_in_topology(const fs::path& root)
{
    const fs::path nodes = below(root, "/sys/class/kfd/kfd/topology/nodes");
    std::vector<std::string> targets;
    for (const std::string& name : names_in(nodes)) {
        std::ifstream properties(nodes / name / "properties");
        std::string key;
        for (unsigned long long value = 0; properties >> key >> value;)
            if (key == "gfx_target_version" && value != 0)
                targets.push_back(target_name(static_cast<unsigned>(value)));
    }
    return targets;
}

// Empty when the node opens for reading and writing, as the runtime will open it.
std::optional<Failure> why_closed(const fs::path& root, const std::string& path)
{
    const int descriptor = open(below(root, path).c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return why_not_opened(root, path, errno);
    close(descriptor);
    return std::nullopt;
}

} // namespace

std::optional<std::string> render_node_of(const fs::path& root, const std::string& pci_bus_id)
{
    const std::vector<std::string> names =
        render_names_in(below(root, "/sys/bus/pci/devices/" + pci_bus_id + "/drm"));
    if (names.empty())
        return std::nullopt;
    const std::string path = std::string(kRenderFolder) + "/" + names.front();
    std::error_code error;
    return fs::exists(below(root, path), error) ? std::optional(path) : std::nullopt;
}

Failure why_not_opened(const fs::path& root, const std::string& path, int error)
{
    const std::string kind = path == kComputeNode ? "kfd" : "render";
    const std::string failed = path + " cannot be opened for reading and writing: " + std::strerror(error);
    struct stat node{};
    if (stat(below(root, path).c_str(), &node) != 0)
        return no_gpu(kind + "-missing", failed, "Pass the node into the container: --device " + path);

    switch (error) {
    case EACCES:
        if (!mode_permits(node))
            return no_gpu(kind + "-denied", failed + "; it is " + ownership(node),
                          "Run with the group that owns the node, as a number: --group-add " +
                              std::to_string(node.st_gid));
        return no_gpu(kind + "-denied",
                      failed + ", although mode and groups allow it; it is " + ownership(node),
                      selinux_enforces(root)
                          ? "SELinux is enforcing here: on the host, setsebool -P container_use_dri_devices=1"
                          : "Look for a security module or a user namespace that hides the owning group");
    case EPERM:
        return no_gpu(kind + "-denied", failed + "; the container's device rules forbid it",
                      "Pass the node as a device, not as a volume: --device " + path);
    case ENODEV:
    case ENXIO:
        return no_gpu(kind + "-refused", failed + "; no driver stands behind the node",
                      "On the host, load the driver: modprobe amdgpu");
    case ENOMEM:
        return no_gpu(kind + "-refused", failed + "; the compute driver has no GPU that it can use",
                      kLookAtTheHost);
    case EINVAL:
        return no_gpu(
            kind + "-refused",
            failed + "; the compute driver refuses this process, perhaps because it and this ROCm do not fit",
            kLookAtTheHost);
    default:
        return no_gpu(kind + "-refused", failed, kLookAtTheHost);
    }
}

Failure why_no_gpu(const fs::path& root)
{
    std::error_code error;
    const fs::file_status compute = fs::status(below(root, kComputeNode), error);
    if (compute.type() == fs::file_type::not_found) {
        // A container shares /sys with its host, so the driver shows even where the node was not passed on.
        if (fs::exists(below(root, "/sys/class/kfd"), error))
            return no_gpu(
                "kfd-missing", "/dev/kfd is not here, although this kernel has the AMD compute driver",
                "Pass it into the container: --device /dev/kfd, and --device with the card's render node");
        return no_gpu("kfd-missing",
                      "/dev/kfd is not here: this kernel has no AMD compute driver (amdgpu) loaded",
                      "On a Linux host with an AMD GPU: modprobe amdgpu");
    }
    if (compute.type() != fs::file_type::character)
        return no_gpu(
            "kfd-missing", "/dev/kfd is not a device node",
            "A volume mount of a missing node leaves a folder of its name: remove it, use --device /dev/kfd");
    if (const auto closed = why_closed(root, kComputeNode))
        return *closed;

    const std::vector<std::string> renders = render_names_in(below(root, kRenderFolder));
    if (renders.empty())
        return no_gpu("render-missing", "/dev/kfd opens, but there is no render node in /dev/dri",
                      "Pass the card's render node too: --device /dev/dri/renderD128");
    std::optional<Failure> closed;
    const bool one_opens = std::any_of(renders.begin(), renders.end(), [&](const std::string& name) {
        const auto reason = why_closed(root, std::string(kRenderFolder) + "/" + name);
        closed = closed ? closed : reason;
        return !reason;
    });
    if (!one_opens)
        return *closed;

    const std::string opened =
        "/dev/kfd and a render node open, but the HIP runtime finds no device; the compute driver shows ";
    const std::vector<std::string> targets = targets_in_topology(root);
    if (targets.empty())
        return no_gpu("no-device", opened + "no GPU to this process",
                      "Check that the node passed in is the AMD card's: " + join(renders));
    return no_gpu("no-device", opened + join(targets),
                  "Check HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, and that this ROCm knows the GPU");
}

} // namespace probe
