#include "hip_library.hpp"

#include <hip/hip_runtime_api.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include <dlfcn.h>

namespace probe {

std::optional<std::string> hip_library_version()
{
    constexpr std::string_view stem = "libamdhip64.so.";
    Dl_info found{};
    if (dladdr(reinterpret_cast<const void*>(hipRuntimeGetVersion), &found) == 0)
        return std::nullopt;
    std::error_code error;
    const std::string name = std::filesystem::canonical(found.dli_fname, error).filename();
    return name.starts_with(stem) ? std::optional(name.substr(stem.size())) : std::nullopt;
}

} // namespace probe
