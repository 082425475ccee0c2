#include "supervise.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace probe {
namespace {

using Clock = std::chrono::steady_clock;

// A process that waits in the kernel for a GPU which no longer answers cannot be killed;
// it is not waited for either.
constexpr std::chrono::seconds kPatienceAfterKill{2};

[[noreturn]] void work_in_child(const std::function<void(Wire&)>& work, int descriptor, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    // A crash is reported; it need not leave a core file of gigabytes behind.
    constexpr rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    // Whatever a library prints must not get into the document.
    dup2(STDERR_FILENO, STDOUT_FILENO);

    Wire wire(descriptor);
    try {
        work(wire);
    } catch (const Failure& failure) {
        wire.fail(failure);
    } catch (const std::exception& error) {
        wire.fail({Verdict::runtime_error, "internal", error.what()});
    }
    // Not exit(): the runtime's own teardown is not what is being tested, and it can hang.
    std::fflush(nullptr);
    _exit(0);
}

// Puts the lines of the child together.
class Listener {
public:
    explicit Listener(std::string hint) : hint_(std::move(hint)) {}

    void hear(std::string_view bytes)
    {
        pending_ += bytes;
        for (std::size_t end = 0; (end = pending_.find('\n')) != std::string::npos;
             pending_.erase(0, end + 1))
            accept(std::string_view(pending_).substr(0, end));
    }

    void blame(std::string reason, std::string message)
    {
        Failure failure(Verdict::runtime_error, std::move(reason), std::move(message), hint_);
        failure.step = step_;
        say(failure);
        report_.verdict = failure.verdict;
        report_.error = to_json(failure);
    }

    const std::string& step() const { return step_; }
    bool has_verdict() const { return has_verdict_; }
    Report report() { return std::move(report_); }

private:
    void accept(std::string_view line)
    {
        const std::size_t space = line.find(' ');
        const std::string_view key = line.substr(0, space);
        const json::Value value{std::string(line.substr(space + 1))};

        if (key == "step")
            step_ = value.text;
        else if (key == "hip")
            report_.hip = value;
        else if (key == "found")
            report_.devices.push_back(value);
        else if (key == "device")
            report_.device = value;
        else if (key == "check")
            report_.checks.push_back(value);
        else if (key == "computed_on")
            report_.computed_on = value;
        else if (key == "error")
            report_.error = value;
        else if (key == "verdict")
            for (const VerdictEntry& entry : kVerdicts)
                if (entry.name == value.text) {
                    report_.verdict = entry.verdict;
                    has_verdict_ = true;
                }
    }

    std::string hint_;
    std::string pending_;
    std::string step_ = "start";
    bool has_verdict_ = false;
    Report report_;
};

// True when the child closed its end in time.
bool listen_until_end(int descriptor, Clock::time_point deadline, Listener& listener)
{
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        if (left.count() <= 0)
            return false;
        pollfd ready{descriptor, POLLIN, 0};
        if (poll(&ready, 1, static_cast<int>(left.count())) <= 0)
            continue;
        char buffer[4096];
        const ssize_t count = read(descriptor, buffer, sizeof buffer);
        if (count == 0)
            return true;
        if (count > 0)
            listener.hear({buffer, static_cast<std::size_t>(count)});
    }
}

// The child's wait status, or nothing when it does not end.
std::optional<int> wait_until(pid_t child, Clock::time_point deadline)
{
    for (;;) {
        int status = 0;
        const pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child)
            return status;
        if (Clock::now() >= deadline)
            return std::nullopt;
        usleep(1000);
    }
}

std::string signal_name(int signal)
{
    const char* abbreviation = sigabbrev_np(signal);
    return abbreviation ? std::string("SIG") + abbreviation : "signal " + std::to_string(signal);
}

} // namespace

void Wire::fail(Failure failure)
{
    if (failure.step.empty())
        failure.step = step_;
    say(failure);
    send("error", to_json(failure).text);
    end(failure.verdict);
}

void Wire::send(std::string_view key, std::string_view value) const
{
    std::string line(key);
    line.append(" ").append(value).append("\n");
    for (std::size_t sent = 0; sent < line.size();) {
        const ssize_t count = write(descriptor_, line.data() + sent, line.size() - sent);
        if (count > 0)
            sent += static_cast<std::size_t>(count);
        else if (errno != EINTR)
            _exit(1);
    }
}

Report supervise(const std::function<void(Wire&)>& work, std::chrono::seconds timeout,
                 const std::string& hint)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        throw std::system_error(errno, std::generic_category(), "pipe2");
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0)
        throw std::system_error(errno, std::generic_category(), "fork");
    if (child == 0) {
        close(ends[0]);
        work_in_child(work, ends[1], parent);
    }
    close(ends[1]);

    Listener listener(hint);
    const auto deadline = Clock::now() + timeout;
    const bool ended = listen_until_end(ends[0], deadline, listener);
    if (!ended)
        kill(child, SIGKILL);
    close(ends[0]);
    const std::optional<int> status = wait_until(child, Clock::now() + kPatienceAfterKill);

    if (!ended)
        listener.blame("timeout",
                       "the step \"" + listener.step() + "\" did not end within " +
                           std::to_string(timeout.count()) + " s of the start" +
                           (status ? "" : "; its process waits in the kernel and cannot be killed"));
    else if (status && WIFSIGNALED(*status))
        listener.blame("crash", "the process was ended by " + signal_name(WTERMSIG(*status)) +
                                    " during the step \"" + listener.step() + "\"");
    else if (!listener.has_verdict())
        listener.blame("crash",
                       "the process ended without an answer during the step \"" + listener.step() + "\"");
    return listener.report();
}

} // namespace probe
