#include "options.hpp"

#include "verdict.hpp"

#include <charconv>

namespace probe {
namespace {

constexpr int kMostDevices = 1024;
constexpr int kLongestTimeout = 3600;

int parse_number(std::string_view option, std::string_view text, int least, int most)
{
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most)
        throw UsageError{std::string(option) + " wants a whole number from " + std::to_string(least) +
                         " to " + std::to_string(most) + ", got \"" + std::string(text) + "\""};
    return number;
}

} // namespace

Options parse_options(const std::vector<std::string_view>& arguments)
{
    Options options;
    bool list = false;
    bool host = false;

    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const std::string_view argument = arguments[i];
        const std::size_t equals = argument.starts_with("--") ? argument.find('=') : std::string_view::npos;
        const std::string_view name = argument.substr(0, equals);

        const auto number = [&](int least, int most) {
            if (equals != std::string_view::npos)
                return parse_number(name, argument.substr(equals + 1), least, most);
            if (i + 1 == arguments.size())
                throw UsageError{std::string(name) + " wants a number after it"};
            return parse_number(name, arguments[++i], least, most);
        };

        if (name == "--device")
            options.device = number(0, kMostDevices - 1);
        else if (name == "--timeout")
            options.timeout_seconds = number(1, kLongestTimeout);
        else if (argument == "--list")
            list = true;
        else if (argument == "--host")
            host = true;
        else if (argument == "--help" || argument == "-h" || argument == "--version") {
            options.action = argument == "--version" ? Action::version : Action::help;
            return options;
        } else if (argument != "--json")
            throw UsageError{(argument.starts_with('-') ? "unknown option " : "unexpected argument ") +
                             ('"' + std::string(argument)) + '"'};
    }

    if (host && (list || options.device))
        throw UsageError{std::string("--host asks for no device; leave out ") +
                         (list ? "--list" : "--device")};
    if (list && options.device)
        throw UsageError{"--list shows every device; leave out --device"};
    if (host)
        options.action = Action::host;
    if (list)
        options.action = Action::list;
    return options;
}

std::string help_text()
{
    std::string text =
        "hip-probe: shows that a GPU is reached through HIP and computes what it should\n"
        "\n"
        "usage: hip-probe [--device N] [--timeout SECONDS]\n"
        "       hip-probe --host [--timeout SECONDS]\n"
        "       hip-probe --list\n"
        "\n"
        "  --device N         run on device N (default: the first)\n"
        "  --host             let the host compute instead of a GPU: this is no pass\n"
        "  --list             list the devices and run nothing\n"
        "  --timeout SECONDS  give up after so long and name the step that hung (default: 60)\n"
        "  --json             write one JSON document to stdout (this is the default and the only form)\n"
        "  --version          print the version\n"
        "  --help             print this text\n"
        "\n"
        "stdout carries the JSON document alone; what is meant for people goes to stderr.\n"
        "\n"
        "verdict, exit code and meaning:\n";
    for (const VerdictEntry& entry : kVerdicts) {
        const std::string code = std::to_string(entry.exit_code);
        text += "  " + std::string(entry.name) + std::string(16 - entry.name.size(), ' ') +
                std::string(2 - code.size(), ' ') + code + "  " + std::string(entry.meaning) + "\n";
    }
    return text;
}

} // namespace probe
