// The command line.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace probe {

inline constexpr std::string_view kVersion = "1.0.0";

enum class Action { run, host, list, help, version };

struct Options {
    Action action = Action::run;
    std::optional<int> device;
    int timeout_seconds = 60;
};

struct UsageError {
    std::string message;
};

// Throws UsageError.
Options parse_options(const std::vector<std::string_view>& arguments);

std::string help_text();

} // namespace probe
