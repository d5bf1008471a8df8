// The options of the process, changed for the time of a test.
#pragma once

#include "base/options.h"
#include "base/rules.h"
#include "memory/routing/tally.h"
#include "support/catch.h"

namespace kvshim {

// Options are constant in a process; a test changes them for its own time, and what was
// counted for rules starts anew.
class With {
 public:
  With() : now_(const_cast<Options&>(options())), saved_(now_) { tally::forget(); }
  ~With() { now_ = saved_; }
  Options* operator->() { return &now_; }
  void rules(const char* text) {
    RuleError error;
    INFO(text);
    REQUIRE(parse_rules(text, &now_.rules, &error));
  }

 private:
  Options& now_;
  Options saved_;
};

}  // namespace kvshim
