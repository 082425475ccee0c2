// The HIP runtime as a file. Asking the runtime itself for its version opens /dev/kfd.
#pragma once

#include <optional>
#include <string>

namespace probe {

// "7.2.53211" of the libamdhip64.so.7.2.53211 that this process loaded; nothing if it is called otherwise.
std::optional<std::string> hip_library_version();

} // namespace probe
