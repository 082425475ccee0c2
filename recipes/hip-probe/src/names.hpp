// Lists in text, and the names of GPU targets: "gfx1201", "gfx90a:sramecc+:xnack-", "gfx12-generic".
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace probe {

inline std::vector<std::string_view> split(std::string_view text, char separator)
{
    std::vector<std::string_view> parts;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(separator), text.size());
        parts.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return parts;
}

inline std::string join(const std::vector<std::string>& parts)
{
    std::string text;
    for (const std::string& part : parts)
        text += (text.empty() ? "" : ", ") + part;
    return text;
}

inline bool is_generic(std::string_view target)
{
    return target.substr(0, target.find(':')).ends_with("-generic");
}

// Whether code compiled for `target` names exactly the processor of a device,
// and asks of it no feature setting that it does not have. A feature that the target leaves open runs either
// way. Which processors a generic target covers is for the runtime to say.
inline bool names_device(std::string_view target, std::string_view gcn_arch)
{
    const auto wanted = split(target, ':');
    const auto offered = split(gcn_arch, ':');
    return !wanted.empty() && !offered.empty() && wanted.front() == offered.front() &&
           std::all_of(wanted.begin() + 1, wanted.end(), [&offered](std::string_view feature) {
               return std::find(offered.begin() + 1, offered.end(), feature) != offered.end();
           });
}

inline bool may_run_on(const std::vector<std::string_view>& compiled_for, std::string_view gcn_arch)
{
    return std::any_of(compiled_for.begin(), compiled_for.end(), [gcn_arch](std::string_view target) {
        return is_generic(target) || names_device(target, gcn_arch);
    });
}

} // namespace probe
