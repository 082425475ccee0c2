// A writer of JSON text, and nothing more: values go in, one line of valid UTF-8 JSON comes out.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>

namespace probe::json {

// Text that is JSON already.
struct Value {
    std::string text = "null";
};

namespace detail {

// The length of the well-formed UTF-8 sequence at the start of `text`, or 0.
// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
inline std::size_t sequence_length(std::string_view text)
{
    const auto byte = [text](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
    };
    const auto continues = [&byte](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
    const unsigned first = byte(0);
    const unsigned second = byte(1);

    if (first < 0x80)
        return 1;
    if (first >= 0xC2 && first <= 0xDF)
        return continues(1) ? 2 : 0;
    if (first >= 0xE0 && first <= 0xEF) {
        const bool overlong = first == 0xE0 && second < 0xA0;
        const bool surrogate = first == 0xED && second > 0x9F;
        return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        const bool overlong = first == 0xF0 && second < 0x90;
        const bool too_large = first == 0xF4 && second > 0x8F;
        return continues(1) && continues(2) && continues(3) && !overlong && !too_large ? 4 : 0;
    }
    return 0;
}

template <typename Number>
std::string digits(Number number)
{
    char buffer[64];
    const auto result = std::to_chars(buffer, buffer + sizeof buffer, number);
    return std::string(buffer, result.ptr);
}

} // namespace detail

// Device names and the messages of the runtime are not ours: a byte that is no UTF-8 becomes U+FFFD.
inline Value write(std::string_view text)
{
    constexpr char hex[] = "0123456789abcdef";
    std::string out = "\"";
    while (!text.empty()) {
        const std::size_t length = detail::sequence_length(text);
        const auto byte = static_cast<unsigned char>(text.front());
        if (length == 0)
            out += "\xEF\xBF\xBD";
        else if (byte == '"' || byte == '\\')
            out += {'\\', text.front()};
        else if (byte == '\n')
            out += "\\n";
        else if (byte == '\t')
            out += "\\t";
        else if (byte < 0x20 || byte == 0x7F)
            out += {'\\', 'u', '0', '0', hex[byte >> 4U], hex[byte & 15U]};
        else
            out += text.substr(0, length);
        text.remove_prefix(length == 0 ? 1 : length);
    }
    out += '"';
    return {out};
}

inline Value write(const std::string& text) { return write(std::string_view(text)); }
inline Value write(const char* text) { return write(std::string_view(text)); }
inline Value write(std::same_as<bool> auto truth) { return {truth ? "true" : "false"}; }
inline Value write(std::nullopt_t) { return {}; }
inline Value write(Value value) { return value; }

template <typename Number>
    requires(std::integral<Number> && !std::same_as<Number, bool>)
Value write(Number number)
{
    return {detail::digits(number)};
}

// JSON has no infinity and no NaN: they become null.
inline Value write(double number) { return std::isfinite(number) ? Value{detail::digits(number)} : Value{}; }

template <typename T>
Value write(const std::optional<T>& value)
{
    return value ? write(*value) : Value{};
}

template <typename Range>
    requires requires(const Range& range) { write(*range.begin()); } &&
             (!std::convertible_to<Range, std::string_view>)
Value write(const Range& range)
{
    std::string out;
    for (const auto& element : range)
        out += (out.empty() ? "" : ", ") + write(element).text;
    return {"[" + out + "]"};
}

// An object; its members keep the order in which they were added.
class Object {
public:
    template <typename T>
    Object& add(std::string_view name, const T& value)
    {
        members_ += (members_.empty() ? "" : ", ") + write(name).text + ": " + write(value).text;
        return *this;
    }

    operator Value() const { return {"{" + members_ + "}"}; }

private:
    std::string members_;
};

} // namespace probe::json
