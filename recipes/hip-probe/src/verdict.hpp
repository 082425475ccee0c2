// How a run can end: one word for programs, one exit code for shells, one sentence for people.
#pragma once

#include <array>
#include <string_view>

namespace probe {

enum class Verdict { pass, host, listed, usage, wrong_result, no_gpu, no_code_object, runtime_error };

struct VerdictEntry {
    Verdict verdict;
    std::string_view name;
    int exit_code;
    std::string_view meaning;
};

// Codes 2, 9 and 10 mean the same everywhere in rocbake; 13 and 14 are this program's own.
inline constexpr std::array kVerdicts{
    VerdictEntry{Verdict::pass, "pass", 0, "every check passed on the device named in computed_on"},
    VerdictEntry{Verdict::host, "host", 0,
                 "every check passed, computed by the host's own code; no GPU was used"},
    VerdictEntry{Verdict::listed, "listed", 0, "the devices are listed; nothing was computed"},
    VerdictEntry{Verdict::usage, "usage", 2, "an option or a device number is wrong"},
    VerdictEntry{Verdict::wrong_result, "wrong-result", 9, "what was computed is wrong"},
    VerdictEntry{Verdict::no_gpu, "no-gpu", 10, "no GPU can be reached from here"},
    VerdictEntry{Verdict::no_code_object, "no-code-object", 13,
                 "this program was not compiled for the device"},
    VerdictEntry{Verdict::runtime_error, "runtime-error", 14, "a step failed, hung or crashed"},
};

constexpr const VerdictEntry& entry_of(Verdict verdict)
{
    for (const VerdictEntry& entry : kVerdicts)
        if (entry.verdict == verdict)
            return entry;
    return kVerdicts.back();
}

} // namespace probe
