#include "lib/greeting.hpp"

#include <algorithm>
#include <filesystem>
#include <ranges>
#include <string_view>
#include <vector>

#include "words.hpp"

std::string greeting() {
  std::vector<std::string_view> words(std::begin(WORDS), std::end(WORDS));
  std::ranges::sort(words);
  std::string all;
  for (auto word : words | std::views::reverse) all += std::string(word) + " ";
  return all + std::filesystem::path(__FILE__).filename().string();
}
