#include "workloads.hpp"

#include <algorithm>
#include <numeric>

namespace probe {
namespace {

// Values behind the ones that may be touched: they must come back as they were.
constexpr std::size_t kGuards = 64;
constexpr int kGuard = -12345;

// One 64-bit step of SplitMix, good enough to make every wrong element show.
std::uint64_t scramble(std::uint64_t number)
{
    number += 0x9e3779b97f4a7c15ULL;
    number = (number ^ (number >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    number = (number ^ (number >> 27U)) * 0x94d049bb133111ebULL;
    return number ^ (number >> 31U);
}

Finding transfer(const Backend& backend)
{
    constexpr std::size_t count = (1U << 20U) + 13;
    std::vector<unsigned char> sent(count);
    for (std::size_t i = 0; i < count; ++i)
        sent[i] = static_cast<unsigned char>(scramble(i));

    return compare(sent, backend.transfer(sent), std::to_string(count) + " bytes there and back");
}

Finding increment(const Backend& backend)
{
    constexpr int count = 3;
    std::vector<int> values{1, 2, 3};
    std::vector<int> expected{2, 3, 4};
    values.resize(count + kGuards, kGuard);
    expected.resize(count + kGuards, kGuard);

    std::vector<int> got = backend.increment(values, count);

    const std::string detail =
        compare(expected, got, "3 values and " + std::to_string(kGuards) + " guards").detail;
    // The guards are shown only where they were touched.
    if (std::equal(expected.begin() + count, expected.end(), got.begin() + count)) {
        expected.resize(count);
        got.resize(count);
    }
    return {json::write(expected), json::write(got), detail};
}

// Integers of -8 to 8: every sum stays below 2^24, so that float is exact in whatever order it adds.
std::vector<float> small_integers(std::size_t count, std::uint64_t seed)
{
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(static_cast<int>(scramble(seed + i) % 17) - 8);
    return values;
}

Finding multiply(const Backend& backend, MatrixShape shape)
{
    const auto rows = static_cast<std::size_t>(shape.rows);
    const auto inner = static_cast<std::size_t>(shape.inner);
    const auto columns = static_cast<std::size_t>(shape.columns);
    const std::vector<float> a = small_integers(rows * inner, 1);
    const std::vector<float> b = small_integers(inner * columns, 1'000'000);

    const std::vector<float> untouched(rows * columns + kGuards, static_cast<float>(kGuard));
    std::vector<float> expected = untouched;
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t column = 0; column < columns; ++column) {
            float sum = 0;
            for (std::size_t k = 0; k < inner; ++k)
                sum += a[row * inner + k] * b[k * columns + column];
            expected[row * columns + column] = sum;
        }

    return compare(expected, backend.multiply(a, b, untouched, shape),
                   std::to_string(rows) + "x" + std::to_string(inner) + " times " + std::to_string(inner) +
                       "x" + std::to_string(columns));
}

Finding matmul(const Backend& backend)
{
    return multiply(backend, {.rows = 64, .inner = 96, .columns = 128});
}

Finding matmul_edges(const Backend& backend)
{
    return multiply(backend, {.rows = 70, .inner = 45, .columns = 53});
}

Finding reduce(const Backend& backend)
{
    constexpr unsigned count = 1'000'003;
    constexpr int blocks = 61;
    std::vector<unsigned> values(count);
    for (unsigned i = 0; i < count; ++i)
        values[i] = static_cast<unsigned>(scramble(i));
    const unsigned expected = std::accumulate(values.begin(), values.end(), 0U);

    return {json::write(expected), json::write(backend.sum(values, blocks)),
            "the sum of " + std::to_string(count) + " numbers modulo 2^32, by " + std::to_string(blocks) +
                " blocks"};
}

} // namespace

const std::vector<Workload>& all_workloads()
{
    static const std::vector<Workload> workloads{
        {"transfer", transfer},         {"increment", increment}, {"matmul", matmul},
        {"matmul-edges", matmul_edges}, {"reduce", reduce},
    };
    return workloads;
}

} // namespace probe
