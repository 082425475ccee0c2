// The host as the one who computes, where there is no GPU. Nothing here knows of HIP.
#pragma once

#include "backend.hpp"

#include <filesystem>
#include <optional>
#include <string>

namespace probe {

// Does what the kernels do, block by block and lane by lane, in plain loops.
extern const Backend kHost;

// What the kernel calls the processor, in /proc/cpuinfo; nothing where it does not say.
// `root` is "/" but in tests.
std::optional<std::string> processor_name(const std::filesystem::path& root);

} // namespace probe
