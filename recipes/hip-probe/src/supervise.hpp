// Runs the work in a child process, so that whatever becomes of it, be it a hang, a crash of the runtime
// or a stray line on stdout, there is still exactly one answer, with everything that was found out before.
#pragma once

#include "report.hpp"

#include <chrono>
#include <functional>

namespace probe {

// The child's end: what it finds out goes to the parent at once.
class Wire {
public:
    explicit Wire(int descriptor) : descriptor_(descriptor) {}

    // Names what is about to be tried, to be blamed if it never ends.
    void begin(std::string_view step)
    {
        step_ = step;
        send("step", step);
    }
    void hip(const json::Value& value) { send("hip", value.text); }
    void device_found(const json::Value& value) { send("found", value.text); }
    void device_chosen(int index) { send("device", json::write(index).text); }
    void check(const json::Value& value) { send("check", value.text); }
    void computed_on(const json::Value& value) { send("computed_on", value.text); }
    void end(Verdict verdict) { send("verdict", entry_of(verdict).name); }
    void fail(Failure failure);

private:
    // One line: neither names nor JSON text of ours hold a line feed.
    void send(std::string_view key, std::string_view value) const;

    int descriptor_;
    std::string step_;
};

// A Failure thrown by `work` becomes the error of the report; `hint` is what to do when it hangs or crashes.
Report supervise(const std::function<void(Wire&)>& work, std::chrono::seconds timeout,
                 const std::string& hint);

} // namespace probe
