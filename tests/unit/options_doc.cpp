// Prints the table of docs/options.md from the library's own option table. scripts/options-doc.sh
// puts it into the file; a test fails when the two differ.
#include <cstdio>
#include <string>

#include "base/options.h"

namespace {

std::string cell(const char* text) {
  std::string result;
  for (const char* c = text; *c != '\0'; ++c) {
    if (*c == '|') result += '\\';
    result += *c;
  }
  return result;
}

}  // namespace

int main() {
  std::puts("| variable | default | takes | what it does |");
  std::puts("| --- | --- | --- | --- |");
  for (const kvshim::OptionInfo& option : kvshim::option_table()) {
    const std::string text = option.default_text;
    std::printf("| `%s` | %s | %s | %s |\n", option.env,
                text.empty() ? "empty" : ("`" + cell(text.c_str()) + "`").c_str(),
                cell(option.allowed).c_str(), cell(option.doc).c_str());
  }
}
