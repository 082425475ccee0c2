// Runs checks one after another, and tells of each as soon as it ends.
#pragma once

#include "finding.hpp"
#include "supervise.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace probe {

class Checklist {
public:
    // `where` closes every detail: who computed.
    Checklist(Wire& wire, std::string where) : wire_(wire), where_(std::move(where)) {}

    // A failed call counts as a check that did not pass, and ends the run.
    void perform(std::string_view name, const std::function<Finding()>& run);

    // Ends the run with this verdict, or with wrong-result.
    void conclude(Verdict if_all_passed);

private:
    Wire& wire_;
    std::string where_;
    std::vector<std::string> wrong_;
};

} // namespace probe
