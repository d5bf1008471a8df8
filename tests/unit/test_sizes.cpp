// The size grammar: each text has one documented meaning or is refused, and never becomes a small
// number by accident.
#include "base/sizes.h"

#include <string>

#include "support/catch.h"
#include "support/malloc_count.h"

using kvshim::format_size;
using kvshim::kGiB;
using kvshim::kKiB;
using kvshim::kMiB;
using kvshim::kNever;
using kvshim::parse_size;
using kvshim::round_up;

namespace {

constexpr std::uint64_t kUntouched = 12345;
constexpr std::uint64_t kTiB = kGiB << 10;

// What the text means, or "refused" with the output left alone.
std::string meaning(std::string_view text) {
  std::uint64_t bytes = kUntouched;
  if (parse_size(text, &bytes)) return std::to_string(bytes);
  return bytes == kUntouched ? "refused" : "refused, but the output was written";
}

std::string number(std::uint64_t bytes) {
  return std::to_string(bytes);
}

}  // namespace

TEST_CASE("every spelling of four gibibytes is four gibibytes") {
  for (const char* text :
       {"4G",    "4g",   "4Gi",      "4gi",   "4GB",        "4gb",         "4GiB",
        "4gib",  "4GIB", "4096M",    "4096m", "4294967296", "4294967296B", "4194304K",
        "  4G ", "4G\n", "\t4G\r\n", "4.0G",  "4.000GiB",   "04G",         "0.00390625T"}) {
    CAPTURE(text);
    CHECK(meaning(text) == number(4 * kGiB));
  }
}

TEST_CASE("a fraction counts when it comes out in whole bytes") {
  CHECK(meaning("1.5G") == number(3 * kGiB / 2));
  CHECK(meaning("0.5K") == "512");
  CHECK(meaning("2.25MiB") == number(9 * kMiB / 4));
  CHECK(meaning("1.50000G") == number(3 * kGiB / 2));
  CHECK(meaning("0.0009765625K") == "1");
  CHECK(meaning("8192.0") == "8192");
  CHECK(meaning("1.3K") == "refused");
  CHECK(meaning("1.1G") == "refused");
  CHECK(meaning("0.5B") == "refused");
  CHECK(meaning("8192.5") == "refused");
}

TEST_CASE("a leading zero is decimal, not octal") {
  CHECK(meaning("08G") == number(8 * kGiB));
  CHECK(meaning("010M") == number(10 * kMiB));
}

TEST_CASE("zero is zero, with and without a unit") {
  for (const char* text : {"0", "0m", "0B", "0GiB", "00", "0.0G", " 0\n"}) {
    CAPTURE(text);
    CHECK(meaning(text) == "0");
  }
}

TEST_CASE("a bare number under 4096 is a lost unit and is refused") {
  for (const char* text : {"1", "4", "512", "2048", "4095", " 4 ", "0004", "2.0"}) {
    CAPTURE(text);
    CHECK(meaning(text) == "refused");
  }
  CHECK(meaning("4096") == "4096");
  CHECK(meaning("4B") == "4");
}

TEST_CASE("anything unclear is refused and leaves the output alone") {
  for (const char* text : {"",
                           " ",
                           "-1",
                           "+1",
                           "-4G",
                           "+4G",
                           "0x10",
                           "0x10G",
                           "1e9",
                           "4X",
                           "50%",
                           "4 G",
                           "NaN",
                           "inf",
                           "G",
                           "GiB",
                           ".",
                           ".5G",
                           "4.G",
                           "4.",
                           "1.5.5G",
                           "1,5G",
                           "4,294,967,296",
                           "4_096M",
                           "4GG",
                           "4Gib/s",
                           "4iB",
                           "4BiB",
                           "4Bi",
                           "4Gb2",
                           "4P",
                           "4E",
                           "never",
                           "4G 4G",
                           "4G\n4G",
                           "\xc2\xa0"
                           "4G",
                           "four",
                           "4\xd0\x9a"}) {
    CAPTURE(text);
    CHECK(meaning(text) == "refused");
  }
  CHECK(meaning(std::string_view("4G\0", 3)) == "refused");
}

TEST_CASE("numbers past 64 bits are refused, not wrapped") {
  for (const char* text :
       {"99999999999G", "18446744073709551616", "16777216T", "17179869184G",
        "99999999999999999999999999", "1.00000000000000000001G", "0.12345678901234567890123G"}) {
    CAPTURE(text);
    CHECK(meaning(text) == "refused");
  }
  CHECK(meaning("18446744073709551615") == number(~0ull));
  CHECK(meaning("16777215T") == number(16777215 * kTiB));
  CHECK(meaning("16777215.5T") == number(16777215 * kTiB + kTiB / 2));
}

TEST_CASE("sizes are printed in the largest unit, with at most two decimals") {
  const struct {
    std::uint64_t bytes;
    const char* text;
  } rows[] = {
      {0, "0 B"},
      {1, "1 B"},
      {512, "512 B"},
      {1023, "1023 B"},
      {kKiB, "1 KiB"},
      {kKiB + 512, "1.5 KiB"},
      {kMiB + kMiB / 4, "1.25 MiB"},
      {kMiB + kMiB / 10, "1.1 MiB"},
      {kMiB + kMiB / 20, "1.05 MiB"},
      {2 * kMiB, "2 MiB"},
      {2 * kMiB + 512, "2 MiB"},
      {2 * kGiB, "2 GiB"},
      {kGiB / 3, "341.33 MiB"},
      {kMiB - 1, "1 MiB"},
      {kGiB - 1, "1 GiB"},
      {kGiB - 6 * kMiB, "1018 MiB"},
      {3 * kTiB / 2, "1.5 TiB"},
      {5000 * kTiB, "5000 TiB"},
      {~0ull, "16777216 TiB"},
  };
  for (const auto& row : rows) CHECK(std::string(format_size(row.bytes).c_str()) == row.text);
}

TEST_CASE("a printed size with its space removed reads back as the same number") {
  for (const std::uint64_t bytes : {5 * kKiB, 3 * kMiB / 2, 2 * kGiB, 7 * kTiB, 512 * kMiB}) {
    std::string text = format_size(bytes).c_str();
    text.erase(text.find(' '), 1);
    CHECK(meaning(text) == number(bytes));
  }
}

TEST_CASE("rounding up saturates at the largest multiple instead of wrapping to zero") {
  CHECK(round_up(0, 512) == 0);
  CHECK(round_up(1, 512) == 512);
  CHECK(round_up(512, 512) == 512);
  CHECK(round_up(2 * kMiB + 1, 2 * kMiB) == 4 * kMiB);
  CHECK(round_up(10, 3) == 12);
  CHECK(round_up(~0ull, 2 * kMiB) == ~0ull - (~0ull % (2 * kMiB)));
  CHECK(round_up(kNever - 1, 4096) % 4096 == 0);
  CHECK(round_up(kNever - 1, 4096) != 0);
}

TEST_CASE("reading and printing sizes takes nothing from the heap") {
  const auto calls = kvshim::test::heap_calls_in([] {
    std::uint64_t bytes = 0;
    for (const char* text : {"1.5G", "4X", "99999999999G", " 512MiB "}) parse_size(text, &bytes);
    (void)format_size(bytes);
  });
  CHECK(calls == 0);
}
