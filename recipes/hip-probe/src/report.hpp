// What is known about a run, and how it is written down.
#pragma once

#include "json.hpp"
#include "verdict.hpp"

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace probe {

// Why a run did not pass. `reason` is one word for programs; empty members are written as null.
struct Failure : std::exception {
    Failure(Verdict the_verdict, std::string the_reason, std::string the_message, std::string the_hint = {},
            std::string the_hip_error = {})
        : verdict(the_verdict), reason(std::move(the_reason)), message(std::move(the_message)),
          hint(std::move(the_hint)), hip_error(std::move(the_hip_error))
    {
    }

    const char* what() const noexcept override { return message.c_str(); }

    Verdict verdict;
    std::string reason;
    std::string message;
    std::string hint;
    std::string hip_error;
    std::string step;
};

// The hint for everything that only the kernel's own log can explain.
inline constexpr const char* kLookAtTheHost = "On the host, see: dmesg | grep -iE 'kfd|amdgpu'";

json::Value to_json(const Failure& failure);

// What every line on stderr begins with; it is set once, before there is a second process.
extern std::string_view speaker;

// One line on stderr, for people.
void say(std::string_view sentence);
void say(const Failure& failure);

// The members are JSON already, so that they can come through a pipe and be printed without being parsed.
struct Report {
    json::Value hip;
    std::vector<json::Value> devices;
    json::Value device;
    std::vector<json::Value> checks;
    json::Value computed_on;
    Verdict verdict = Verdict::runtime_error;
    json::Value error;
};

// The document of schema 1, on several lines: one a field, one a device, one a check.
std::string document(const Report& report, const std::vector<std::string_view>& compiled_for);

} // namespace probe
