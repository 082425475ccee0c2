#include "checklist.hpp"

#include "names.hpp"

#include <chrono>
#include <cmath>

namespace probe {

void Checklist::perform(std::string_view name, const std::function<Finding()>& run)
{
    wire_.begin(name);
    const auto start = std::chrono::steady_clock::now();
    const auto report = [&](const Finding& finding) {
        const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
        const double milliseconds = std::round(elapsed.count() * 1000) / 1000;
        const std::string detail = finding.detail + where_;
        wire_.check(json::Object()
                        .add("name", name)
                        .add("ok", finding.ok())
                        .add("expected", finding.expected)
                        .add("got", finding.got)
                        .add("detail", detail)
                        .add("milliseconds", milliseconds));
        say((finding.ok() ? "ok    " : "WRONG ") + std::string(name) + ": " + detail);
    };

    try {
        const Finding finding = run();
        report(finding);
        if (!finding.ok())
            wrong_.emplace_back(name);
    } catch (const Failure& failure) {
        report({json::write("no error"),
                json::write(failure.hip_error.empty() ? failure.reason : failure.hip_error),
                failure.message});
        throw;
    }
}

void Checklist::conclude(Verdict if_all_passed)
{
    if (wrong_.empty())
        return wire_.end(if_all_passed);
    Failure failure(Verdict::wrong_result, "wrong-result", "not the expected result: " + join(wrong_));
    failure.step = wrong_.front();
    throw failure;
}

} // namespace probe
