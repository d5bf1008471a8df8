// Sizes as people write and read them: the one grammar of every size option (sizes.h states it).
// No heap, no locale, no library number parser: the text comes from any process's environment.
#include "base/sizes.h"

#include "base/ascii.h"

namespace kvshim {
namespace {

// Fractions longer than this are refused. It keeps 5^digits inside 64 bits, and nobody writes them.
constexpr unsigned kFractionDigitsMax = 18;

// Takes digits from the front of `text`. False if there are none or the number passes 64 bits.
bool take_number(std::string_view* text, std::uint64_t* number, unsigned* digits) {
  std::uint64_t value = 0;
  unsigned count = 0;
  while (count < text->size() && ascii::is_digit((*text)[count])) {
    const auto digit = static_cast<std::uint64_t>((*text)[count] - '0');
    if (__builtin_mul_overflow(value, 10u, &value)) return false;
    if (__builtin_add_overflow(value, digit, &value)) return false;
    ++count;
  }
  text->remove_prefix(count);
  *number = value;
  *digits = count;
  return count > 0;
}

// The unit's power of two. False if the text is not a unit to its end.
bool take_unit(std::string_view text, unsigned* shift) {
  constexpr std::string_view letters = "bkmgt";
  if (text.empty()) return false;
  const auto at = letters.find(ascii::lower(text.front()));
  if (at == std::string_view::npos) return false;
  *shift = static_cast<unsigned>(at) * 10;
  text.remove_prefix(1);
  if (at != 0) {
    if (!text.empty() && ascii::lower(text.front()) == 'i') text.remove_prefix(1);
    if (!text.empty() && ascii::lower(text.front()) == 'b') text.remove_prefix(1);
  }
  return text.empty();
}

// fraction / 10^digits * 2^shift, if that is a whole number.
bool scale_fraction(std::uint64_t fraction, unsigned digits, unsigned shift, std::uint64_t* bytes) {
  std::uint64_t power_of_five = 1;
  for (unsigned i = 0; i < digits; ++i) power_of_five *= 5;
  if (fraction % power_of_five != 0) return false;
  const std::uint64_t value = fraction / power_of_five;  // below 2^digits
  if (shift >= digits) {
    *bytes = value << (shift - digits);
    return true;
  }
  const unsigned down = digits - shift;
  *bytes = value >> down;
  return *bytes << down == value;
}

char* put_number(char* out, std::uint64_t number) {
  char digits[20];
  unsigned count = 0;
  do {
    digits[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  while (count > 0) *out++ = digits[--count];
  return out;
}

}  // namespace

bool parse_size(std::string_view text, std::uint64_t* bytes) {
  while (!text.empty() && ascii::is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && ascii::is_space(text.back())) text.remove_suffix(1);

  std::uint64_t whole = 0;
  unsigned digits = 0;
  if (!take_number(&text, &whole, &digits)) return false;

  std::uint64_t fraction = 0;
  unsigned fraction_digits = 0;
  if (!text.empty() && text.front() == '.') {
    text.remove_prefix(1);
    if (!take_number(&text, &fraction, &fraction_digits)) return false;
    while (fraction_digits > 0 && fraction % 10 == 0) {
      fraction /= 10;
      --fraction_digits;
    }
    if (fraction_digits > kFractionDigitsMax) return false;
  }

  unsigned shift = 0;
  const bool has_unit = !text.empty();
  if (has_unit && !take_unit(text, &shift)) return false;

  if (whole > ~0ull >> shift) return false;
  std::uint64_t extra = 0;
  if (!scale_fraction(fraction, fraction_digits, shift, &extra)) return false;
  const std::uint64_t value = (whole << shift) + extra;  // extra is below 2^shift: no overflow
  if (!has_unit && value >= 1 && value <= 4095) return false;
  *bytes = value;
  return true;
}

SizeText format_size(std::uint64_t bytes) {
  constexpr const char* units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  unsigned unit = 0;
  while (unit < 4 && bytes >> (10 * (unit + 1)) != 0) ++unit;

  std::uint64_t whole = bytes >> (10 * unit);
  const std::uint64_t one = 1ull << (10 * unit);
  std::uint64_t hundredths = ((bytes & (one - 1)) * 100 + one / 2) >> (10 * unit);
  if (hundredths == 100) {
    hundredths = 0;
    ++whole;
  }
  if (whole == 1024 && unit < 4) {
    whole = 1;
    ++unit;
  }

  SizeText result{};
  char* out = put_number(result.text, whole);
  if (hundredths != 0) {
    *out++ = '.';
    *out++ = static_cast<char>('0' + hundredths / 10);
    if (hundredths % 10 != 0) *out++ = static_cast<char>('0' + hundredths % 10);
  }
  for (const char* c = units[unit]; *c != '\0'; ++c) *out++ = *c;
  return result;
}

}  // namespace kvshim
