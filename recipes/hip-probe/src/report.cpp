#include "report.hpp"

#include "options.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>

namespace probe {
namespace {

// Each of these changes which devices the runtime shows, or what it takes them for.
constexpr std::array kTellingVariables{"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
                                       "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION"};

json::Value environment()
{
    json::Object set;
    for (const char* name : kTellingVariables)
        if (const char* value = std::getenv(name))
            set.add(name, value);
    return set;
}

std::string lines_of(const std::vector<json::Value>& values)
{
    std::string text;
    for (const json::Value& value : values)
        text += (text.empty() ? "\n    " : ",\n    ") + value.text;
    return "[" + text + (values.empty() ? "]" : "\n  ]");
}

std::optional<std::string> unless_empty(const std::string& text)
{
    return text.empty() ? std::nullopt : std::optional(text);
}

} // namespace

json::Value to_json(const Failure& failure)
{
    return json::Object()
        .add("reason", failure.reason)
        .add("message", failure.message)
        .add("hint", unless_empty(failure.hint))
        .add("hip_error", unless_empty(failure.hip_error))
        .add("step", unless_empty(failure.step));
}

std::string_view speaker = "hip-probe";

void say(std::string_view sentence)
{
    std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(speaker.size()), speaker.data(),
                 static_cast<int>(sentence.size()), sentence.data());
}

void say(const Failure& failure)
{
    say(failure.message);
    if (!failure.hint.empty())
        say(failure.hint);
}

std::string document(const Report& report, const std::vector<std::string_view>& compiled_for)
{
    std::string text;
    const auto field = [&text](std::string_view name, const std::string& value) {
        text += (text.empty() ? "{\n  " : ",\n  ") + json::write(name).text + ": " + value;
    };

    field("schema", "1");
    field("program", json::write("hip-probe").text);
    field("version", json::write(kVersion).text);
    field("compiled_for", json::write(compiled_for).text);
    field("hip", report.hip.text);
    field("environment", environment().text);
    field("devices", lines_of(report.devices));
    field("device", report.device.text);
    field("checks", lines_of(report.checks));
    field("computed_on", report.computed_on.text);
    field("verdict", json::write(entry_of(report.verdict).name).text);
    field("error", report.error.text);
    return text + "\n}\n";
}

} // namespace probe
