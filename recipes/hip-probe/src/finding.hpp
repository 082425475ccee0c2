// What a check found, and how values that do not fit into a report are compared in one.
#pragma once

#include "json.hpp"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace probe {

// `expected` and `got` are equal exactly when the check passed.
struct Finding {
    json::Value expected;
    json::Value got;
    std::string detail;

    bool ok() const { return expected.text == got.text; }
};

// FNV-1a: short enough to stand in a report where the values themselves would not.
template <typename T>
std::string fingerprint(const std::vector<T>& values)
{
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (std::size_t i = 0; i < values.size() * sizeof(T); ++i)
        hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
    char text[32];
    std::snprintf(text, sizeof text, "fnv1a:%016llx", static_cast<unsigned long long>(hash));
    return text;
}

// Byte for byte.
template <typename T>
Finding compare(const std::vector<T>& expected, const std::vector<T>& got, const std::string& what)
{
    std::size_t wrong = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
        if (std::memcmp(&expected[i], &got[i], sizeof(T)) != 0 && wrong++ == 0)
            first = i;

    std::string detail = what + ", all equal";
    if (wrong != 0)
        detail = what + ", " + std::to_string(wrong) + " differ, the first at " + std::to_string(first) +
                 ": expected " + std::to_string(expected[first]) + ", got " + std::to_string(got[first]);
    return {json::write(fingerprint(expected)), json::write(fingerprint(got)), detail};
}

} // namespace probe
