#pragma once

inline constexpr const char* WORDS[] = {"hello", "again"};
