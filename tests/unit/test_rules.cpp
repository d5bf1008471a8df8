// KVSHIM_RULES: what the grammar takes and means, and where and why it refuses the rest.
#include <string>

#include "base/options.h"
#include "base/rules.h"
#include "base/sizes.h"
#include "support/catch.h"

using namespace kvshim;

namespace {

Rules parsed(std::string_view text) {
  Rules rules;
  RuleError error;
  INFO(std::string(text));
  const bool taken = parse_rules(text, &rules, &error);
  INFO("expected " << error.expected << " at " << error.at);
  REQUIRE(taken);
  return rules;
}

// One block as the rules see it.
struct Request {
  std::uint64_t bytes = 4096;
  std::uint64_t device = 0;
  std::uint64_t nth = 1;
  std::uint64_t device_nth = 1;
  std::uint64_t held = 0;
  std::uint64_t device_held = 0;
  const char* library = "libtorch.so";
};

unsigned match(const Rules& rules, const Request& request) {
  const std::uint64_t values[kSubjectCount] = {request.bytes, request.device,
                                               request.nth,   request.device_nth,
                                               request.held,  request.device_held};
  return first_match(rules, values, [&] { return std::string_view(request.library); });
}
unsigned match(const char* text, const Request& request) {
  return match(parsed(text), request);
}

}  // namespace

TEST_CASE("the first rule that matches wins, and none may") {
  const Rules rules = parsed("lib=libnccl*:vmm; size=1GiB..8GiB:managed; size>32GiB:native; *:vmm");
  REQUIRE(rules.count == 4);
  CHECK(match(rules, {.bytes = 2 * kGiB, .library = "libnccl.so.2"}) == 1);
  CHECK(match(rules, {.bytes = 2 * kGiB}) == 2);
  CHECK(match(rules, {.bytes = 33 * kGiB}) == 3);
  CHECK(match(rules, {.bytes = 9 * kGiB}) == 4);
  CHECK(rules.list[1].kind == Kind::managed);
  CHECK(rules.list[2].kind == Kind::native);
  CHECK(match("size>1GiB:managed", {.bytes = kGiB}) == 0);
  CHECK(match("", {}) == 0);
}

TEST_CASE("every word that KVSHIM_LARGE takes is a kind here too") {
  for (unsigned index = 0; index < kKindCount; ++index) {
    const auto kind = static_cast<Kind>(index);
    Kind read = Kind::native;
    REQUIRE(parse_kind(kind_name(kind), &read));
    CHECK(read == kind);
    CHECK(parsed(std::string("*:") + kind_name(kind)).list[0].kind == kind);
  }
}

TEST_CASE("ranges: both ends included, and the four comparisons to the byte") {
  struct Row {
    const char* rule;
    std::uint64_t first;  // of the sizes that match
    std::uint64_t last;
  };
  for (const Row row :
       {Row{"size=1GiB..8GiB:vmm", kGiB, 8 * kGiB}, Row{"size=1GiB:vmm", kGiB, kGiB},
        Row{"size>1GiB:vmm", kGiB + 1, ~0ull}, Row{"size>=1GiB:vmm", kGiB, ~0ull},
        Row{"size<1GiB:vmm", 0, kGiB - 1}, Row{"size<=1GiB:vmm", 0, kGiB},
        Row{"size=1.5G..2G:vmm", 3 * kGiB / 2, 2 * kGiB}}) {
    INFO(row.rule);
    CHECK(match(row.rule, {.bytes = row.first}) == 1);
    CHECK(match(row.rule, {.bytes = row.last}) == 1);
    if (row.first != 0) CHECK(match(row.rule, {.bytes = row.first - 1}) == 0);
    if (row.last != ~0ull) CHECK(match(row.rule, {.bytes = row.last + 1}) == 0);
  }
}

TEST_CASE("each subject looks at its own number") {
  CHECK(match("device=1:vmm", {.device = 1}) == 1);
  CHECK(match("device=1:vmm", {.device = 0}) == 0);
  CHECK(match("device=1..3:vmm", {.device = 3}) == 1);
  CHECK(match("nth=2:vmm", {.nth = 2}) == 1);
  CHECK(match("nth=2:vmm", {.nth = 3, .device_nth = 2}) == 0);
  CHECK(match("nth<=2:vmm", {.nth = 2}) == 1);
  CHECK(match("device_nth>2:vmm", {.nth = 1, .device_nth = 3}) == 1);
  CHECK(match("after=60GiB:managed", {.held = 60 * kGiB}) == 1);
  CHECK(match("after=60GiB:managed", {.held = 60 * kGiB - 1, .device_held = 61 * kGiB}) == 0);
  CHECK(match("device_after=1GiB:managed", {.device_held = 2 * kGiB}) == 1);
}

TEST_CASE("conditions of one rule must all hold; blanks and case of words do not matter") {
  const char* text = "  SIZE >= 1GiB , Device=0 ,lib = libtorch* : Managed ; ";
  CHECK(match(text, {.bytes = kGiB}) == 1);
  CHECK(match(text, {.bytes = kGiB - 1}) == 0);
  CHECK(match(text, {.bytes = kGiB, .device = 1}) == 0);
  CHECK(match(text, {.bytes = kGiB, .library = "libfoo.so"}) == 0);
  CHECK(match("* : vmm", {}) == 1);
}

TEST_CASE("the library is asked for once, and only where a rule depends on it") {
  const Rules rules = parsed("size>1GiB,lib=a*:vmm; lib=b*:vmm; lib=c*:vmm; *:native");
  int asked = 0;
  const auto name = [&]() -> std::string_view {
    ++asked;
    return "libx.so";
  };
  const std::uint64_t values[kSubjectCount] = {4096, 0, 1, 1, 0, 0};
  CHECK(first_match(rules, values, name) == 4);
  CHECK(asked == 1);
  asked = 0;
  CHECK(first_match(parsed("size>1GiB,lib=a*:vmm; *:native"), values, name) == 2);
  CHECK(asked == 0);
  // A library that is not known matches no pattern.
  CHECK(match("lib=*:vmm", {.library = ""}) == 0);
}

TEST_CASE("patterns: * for any characters, ? for one, everything else for itself") {
  CHECK(matches_pattern("libnccl.so.2", "libnccl*"));
  CHECK(matches_pattern("libnccl.so.2", "libnccl.so.?"));
  CHECK(matches_pattern("libnccl.so.2", "*nccl*"));
  CHECK(matches_pattern("libnccl.so.2", "*"));
  CHECK(matches_pattern("libnccl.so.2", "libnccl.so.2"));
  CHECK(matches_pattern("aabab", "*ab"));
  CHECK(matches_pattern("abcabcd", "a*c?"));
  CHECK_FALSE(matches_pattern("libnccl.so.2", "nccl"));
  CHECK_FALSE(matches_pattern("libnccl.so.2", "libnccl"));
  CHECK_FALSE(matches_pattern("libnccl.so.2", "libnccl.so.??"));
  CHECK_FALSE(matches_pattern("libnccl.so.2", "LIBNCCL*"));
  CHECK_FALSE(matches_pattern("", "?"));
  CHECK(matches_pattern("", "*"));
}

TEST_CASE("a bad rule refuses the whole text, with the character and what should stand there") {
  const std::string many = [] {
    std::string text;
    for (int i = 0; i < 33; ++i) text += "*:vmm;";
    return text;
  }();
  const std::string long_name = "lib=" + std::string(64, 'x') + ":vmm";
  struct Row {
    std::string text;
    unsigned at;
    const char* expected;  // part of it
  };
  for (const Row& row : {
           Row{"nonsense", 1, "a condition"},
           Row{";", 1, "a condition"},
           Row{"*:vmm;;*:vmm", 7, "a condition"},
           Row{"*", 2, "':' and a kind"},
           Row{"*:", 3, "a kind of memory"},
           Row{"*:gpu", 3, "a kind of memory"},
           Row{"*:vmm managed", 7, "';' and another rule"},
           Row{"*:vmm,size>1G:vmm", 6, "';' and another rule"},
           Row{"*,size>1G:vmm", 2, "':' and a kind"},
           Row{"size", 5, "=, <, <=, > or >="},
           Row{"size:vmm", 5, "=, <, <=, > or >="},
           Row{"size==1G:vmm", 6, "a size such as 512MiB"},
           Row{"size>:vmm", 6, "a size such as 512MiB"},
           Row{"size>4:vmm", 6, "a size such as 512MiB"},
           Row{"size>4X:vmm", 6, "a size such as 512MiB"},
           Row{"size>-1:vmm", 6, "a size such as 512MiB"},
           Row{"size>4 G:vmm", 6, "a size such as 512MiB"},
           Row{"*:vmm; size=1GiB..8GiX:managed", 19, "a size such as 512MiB"},
           Row{"size=1GiB..:managed", 12, "a size such as 512MiB"},
           Row{"size=..1GiB:managed", 6, "a size such as 512MiB"},
           Row{"size>1GiB..8GiB:managed", 6, "a size such as 512MiB"},
           Row{"size=8GiB..1GiB:managed", 6, "does not end before"},
           Row{"size<0:vmm", 6, "nothing is below"},
           Row{"size>1GiB", 10, "',' and another condition"},
           Row{"size>1GiB,:vmm", 11, "a condition"},
           Row{"size>1GiB,size<2GiB:vmm", 11, "each condition once"},
           Row{"lib=a,lib=b:vmm", 7, "each condition once"},
           Row{"size>1GiB;*:vmm", 10, "',' and another condition"},
           Row{"device:vmm", 7, "=, <"},
           Row{"device=x:vmm", 8, "a whole number"},
           Row{"device=-1:vmm", 8, "a whole number"},
           Row{"device=0..:vmm", 11, "a whole number"},
           Row{"device=99999999999999999999:vmm", 8, "a whole number"},
           Row{"nth=0:vmm", 5, "from 1 on"},
           Row{"nth=0..4:vmm", 5, "from 1 on"},
           Row{"nth<1:vmm", 5, "nothing is below"},
           Row{"nth=4GiB:vmm", 5, "a whole number"},
           Row{"after>1GiB:vmm", 6, "="},
           Row{"after=1GiB..2GiB:vmm", 7, "a size such as 60GiB"},
           Row{"after=:vmm", 7, "a size such as 60GiB"},
           Row{"lib:vmm", 4, "="},
           Row{"lib=:vmm", 5, "a file name"},
           Row{"lib=/usr/lib/libx.so:vmm", 5, "a file name"},
           Row{"lib=a b:vmm", 5, "a file name"},
           Row{long_name, 5, "a file name"},
           Row{"library=x:vmm", 1, "a condition"},
           Row{"*:vmm; colour=red:vmm", 8, "a condition"},
           Row{many, 193, "no more than 32"},
       }) {
    INFO(row.text);
    Rules rules;
    rules.count = 77;
    RuleError error;
    CHECK_FALSE(parse_rules(row.text, &rules, &error));
    CHECK(rules.count == 77);
    CHECK(error.at == row.at);
    INFO(error.expected);
    CHECK(std::string(error.expected).find(row.expected) != std::string::npos);
  }
}

TEST_CASE("what was understood can be written down and read back") {
  for (const char* text :
       {"*:vmm", "size=1GiB..8GiB:managed", "size>=32GiB:vmm", "size<4KiB:native",
        "size<=4KiB:native", "size=1025B:vmm", "device=1,nth>=3,lib=libnccl*:vmm",
        "device_nth=2..9:vmm", "after=60GiB:managed", "device_after=512MiB:managed"}) {
    CHECK(std::string(describe(parsed(text).list[0]).text) == text);
  }
  CHECK(std::string(describe(parsed("size>1GiB,device=0:vmm").list[0]).text) ==
        "size>1GiB,device=0:vmm");
}

TEST_CASE("thirty-two rules fit") {
  std::string text;
  for (int i = 0; i < 31; ++i) text += "size>=1TiB,device=3,lib=libx.so:vmm;";
  CHECK(match((text + "*:managed").c_str(), {}) == 32);
}
