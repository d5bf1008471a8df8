#!/usr/bin/env bash
# The container entrypoint: finds the library, preloads it once, becomes the command, and says in one
# line what is wrong. The Dockerfile: what it copies exists, and what it copies is enough to build.
#
#   test_entrypoint.sh plain | pid1 | image
#
# From the build: KVSHIM_LIBRARY (libkvshim.so), TOO_NEW_LIBRARY (needs a libc from the future).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
entrypoint=$root/scripts/kvshim-entrypoint.sh
library=${KVSHIM_LIBRARY:?}
too_new=${TOO_NEW_LIBRARY:?}
unset KVSHIM_LIBRARY TOO_NEW_LIBRARY KVSHIM_LIB KVSHIM_REQUIRE LD_PRELOAD

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# check TITLE: the last command's status in $status, its output in $out and $err.
check() {
  local title=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAIL: %s\n  checked: %s\n  status: %s\n  out: %s\n  err: %s\n' \
      "$title" "$*" "$status" "$out" "$err"
  fi
}
run() {
  status=0
  "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
  out=$(cat "$work/out")
  err=$(cat "$work/err")
}
status_is() { [[ $status -eq $1 ]]; }
out_is() { [[ $out == "$1" ]]; }
says_nothing() { [[ -z $err ]]; }
says_one_line() { [[ $err == "kvshim-entrypoint: "*"$1"* && $(wc -l < "$work/err") -eq 1 ]]; }

# A directory laid out as an image has it: the wrapper beside no library.
mkdir -p "$work/bin"
cp "$entrypoint" "$work/bin/"
lonely=$work/bin/kvshim-entrypoint.sh

plain() {
  # shellcheck disable=SC2016  # the started shell expands it
  local show='printf %s "$LD_PRELOAD"'

  run env KVSHIM_LIB="$library" "$entrypoint" sh -c "$show"
  check 'the library is preloaded into the command' out_is "$library"
  check 'nothing is said when all is well' says_nothing
  check 'status 0 is kept' status_is 0

  run env KVSHIM_LIB="$library" "$entrypoint" sh -c 'exit 37'
  check 'the exit status of the command is kept' status_is 37

  run env KVSHIM_LIB="$library" "$entrypoint" printf '<%s>' 'a b' '' '*' "c'd"
  check 'arguments arrive as they were given' out_is "<a b><><*><c'd>"

  # What the loader is asked to preload, on top of the wrapper.
  cp "$library" "$work/other.so"
  run env KVSHIM_LIB="$library" LD_PRELOAD="$work/other.so" "$entrypoint" sh -c "$show"
  check 'what was preloaded stays' out_is "$library:$work/other.so"
  cp "$library" "$work/third.so"
  run env KVSHIM_LIB="$library" LD_PRELOAD="$work/other.so $work/third.so" "$entrypoint" sh -c "$show"
  check 'blanks as separators stay' out_is "$library:$work/other.so $work/third.so"
  run env KVSHIM_LIB="$library" "$entrypoint" "$entrypoint" sh -c "$show"
  check 'the wrapper inside the wrapper adds nothing' out_is "$library"
  run env LD_PRELOAD="$work/other.so:$library" "$lonely" sh -c "$show"
  check 'a library that is preloaded already is not added again' out_is "$work/other.so:$library"

  cp "$library" "$work/bin/libkvshim.so"
  run "$lonely" sh -c "$show"
  check 'a library beside the wrapper is found' out_is "$work/bin/libkvshim.so"
  ln -sf "$lonely" "$work/link"
  run "$work/link" sh -c "$show"
  check 'it is found through a symbolic link to the wrapper' out_is "$work/bin/libkvshim.so"
  rm "$work/bin/libkvshim.so"
  mkdir -p "$work/lib/kvshim/$(uname -m)"
  cp "$library" "$work/lib/kvshim/$(uname -m)/libkvshim.so"
  run "$lonely" sh -c "$show"
  check "a library in the folder of this architecture is found" \
    out_is "$work/lib/kvshim/$(uname -m)/libkvshim.so"
  rm -r "${work:?}/lib"

  run bash -c "cd '$work' && cp '$library' libkvshim.so && KVSHIM_LIB=libkvshim.so '$lonely' sh -c 'cd /; printf %s \"\$LD_PRELOAD\"'"
  check 'a relative path becomes absolute' out_is "$work/libkvshim.so"

  # shellcheck disable=SC2016
  run env KVSHIM_LIB="$library" KVSHIM_THRESHOLD=3G arch=mine status=7 "$entrypoint" \
    sh -c 'printf "%s %s %s" "$KVSHIM_THRESHOLD" "$arch" "$status"'
  check 'options and other variables reach the command' out_is '3G mine 7'

  run env KVSHIM_LIB="$library" "$entrypoint" no-such-command
  check 'a command that does not exist ends with 127' status_is 127

  run "$entrypoint"
  check 'without a command there is a usage line' test "${err#usage: }" != "$err"
  check 'and status 64' status_is 64

  # ---- no usable library: one line, and the command runs; KVSHIM_REQUIRE=1: it does not ----
  local path reason
  mkdir -p "$work/with blank"
  cp "$library" "$work/with blank/libkvshim.so"
  cp "$library" "$work/with:colon.so"
  echo 'not a library' > "$work/text.so"
  cp "$library" "$work/foreign.so"
  # The ELF header's machine: AArch64 (183) on x86-64, x86-64 (62) elsewhere.
  if [[ $(uname -m) == x86_64 ]]; then machine='\267\000'; else machine='\076\000'; fi
  # shellcheck disable=SC2059
  printf "$machine" | dd of="$work/foreign.so" bs=1 seek=18 conv=notrunc status=none
  while IFS='|' read -r path reason; do
    run env KVSHIM_LIB="$path" "$entrypoint" echo started
    check "$path: the command runs" out_is started
    check "$path: one line says why without kvshim" says_one_line "$reason"
    run env KVSHIM_LIB="$path" LD_PRELOAD="$work/other.so" "$entrypoint" sh -c "$show"
    check "$path: LD_PRELOAD stays as it was" out_is "$work/other.so"
    run env KVSHIM_LIB="$path" KVSHIM_REQUIRE=1 "$entrypoint" echo started
    check "$path: with KVSHIM_REQUIRE=1 nothing is started" out_is ''
    check "$path: with KVSHIM_REQUIRE=1 the status is 78" status_is 78
    check "$path: with KVSHIM_REQUIRE=1 one line says why" says_one_line "$reason"
  done << END
/no/such/libkvshim.so|does not exist
$work|is not a file
$work/with blank/libkvshim.so|has a blank or a colon
$work/with:colon.so|has a blank or a colon
$work/text.so|cannot be loaded
$work/foreign.so|another architecture
$too_new|GLIBC_2.99
END

  run env KVSHIM_REQUIRE=1 "$lonely" echo started
  if [[ $status -eq 0 ]]; then
    echo 'note: this machine has kvshim installed; its absence is not tested'
  else
    check 'no library anywhere: status 78' status_is 78
    check 'no library anywhere: the line names the variable to set' says_one_line 'KVSHIM_LIB'
  fi
  run env LD_PRELOAD=/no/such/libkvshim.so KVSHIM_REQUIRE=1 "$lonely" echo started
  check 'a preloaded libkvshim.so that does not exist is noticed' status_is 78
  run env KVSHIM_LIB=/no/such KVSHIM_REQUIRE=0 "$entrypoint" echo started
  check 'KVSHIM_REQUIRE=0 requires nothing' out_is started
  run env KVSHIM_LIB=/no/such KVSHIM_REQUIRE=yes "$entrypoint" echo started
  check 'an unclear KVSHIM_REQUIRE errs on the strict side' status_is 78

  if command -v dash > /dev/null && command -v busybox > /dev/null; then
    run env KVSHIM_LIB="$library" busybox sh "$entrypoint" sh -c "$show"
    check 'busybox sh runs the wrapper too' out_is "$library"
  fi
}

pid1() {
  local -a namespaces=(unshare --pid --fork --kill-child --mount-proc)
  if ! "${namespaces[@]}" true 2> /dev/null; then
    namespaces=(unshare --user --map-root-user --pid --fork --kill-child --mount-proc)
    if ! "${namespaces[@]}" true 2> /dev/null; then
      echo 'SKIPPED: this machine does not permit new PID namespaces (unshare)'
      exit 77
    fi
  fi
  export KVSHIM_LIB=$library

  # shellcheck disable=SC2016  # the started shell expands it
  run "${namespaces[@]}" "$entrypoint" sh -c 'echo $$ $(cat /proc/1/comm)'
  check 'the command is PID 1' out_is '1 sh'
  run "${namespaces[@]}" "$entrypoint" sh -c 'tr "\0" " " < /proc/1/cmdline'
  check 'no shell of the wrapper is left above it' out_is 'sh -c tr "\0" " " < /proc/1/cmdline '
  run "${namespaces[@]}" "$entrypoint" sh -c 'exit 41'
  check 'the exit status is kept' status_is 41
  # The parentheses give PID 1 a child, which maps the library too.
  run "${namespaces[@]}" "$entrypoint" sh -c '(grep -c "libkvshim\.so$" /proc/self/maps > /dev/null && echo mapped)'
  check 'the library is mapped in what the command starts' out_is mapped

  # The signal goes to the wrapper's process from outside, as a container engine sends it. (No
  # SIGINT: a shell starts its background jobs with that ignored.)
  local signal wanted
  for signal in TERM HUP USR1; do
    mkfifo "$work/ready.$signal"
    "${namespaces[@]}" "$entrypoint" bash -c "
      trap 'echo got $signal; exit 52' $signal
      echo up > '$work/ready.$signal'
      for ((n = 0; n < 200; n++)); do sleep 0.1; done" > "$work/out" 2> "$work/err" &
    local outer=$!
    read -r _ < "$work/ready.$signal"
    local inner
    inner=$(ps -o pid= --ppid "$outer" | tr -d ' ')
    kill -s "$signal" "$inner"
    status=0
    wait "$outer" || status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
    wanted="got $signal"
    check "SIG$signal reaches the command" out_is "$wanted"
    check "SIG$signal: the handler's exit status is kept" status_is 52
  done

  run env KVSHIM_LIB=/no/such KVSHIM_REQUIRE=1 "${namespaces[@]}" "$entrypoint" true
  check 'a missing required library ends the container with 78' status_is 78
}

has_line() { grep -qxF "$1" <<< "$instructions"; }
has_text() { grep -qF "$1" <<< "$instructions"; }

image() {
  local file=$root/docker/Dockerfile
  status=0 out='' err=''
  local -a words
  local line source target stage=0 copied=$work/context
  mkdir "$copied"
  # Continued lines joined, comments gone.
  local instructions
  instructions=$(sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' -e '/^ *#/d' "$file")
  while read -r line; do
    read -r -a words <<< "$line"
    case ${words[0]:-} in
      FROM) stage=$((stage + 1)) ;;
      COPY)
        [[ $line != *--from=* ]] || continue
        target=${words[-1]}
        for source in "${words[@]:1:${#words[@]}-2}"; do
          [[ $source != --* ]] || continue
          check "COPY $source: it exists" test -e "$root/$source"
          if [[ $stage -eq 1 ]]; then cp -r "$root/$source" "$copied/"; fi
          if [[ $source == */kvshim-entrypoint.sh ]]; then
            check 'the ENTRYPOINT is where the wrapper is copied' \
              has_line "ENTRYPOINT [\"$target\"]"
            check 'the wrapper is executable' test -x "$root/$source"
          fi
        done
        ;;
    esac
  done <<< "$instructions"
  check 'there are two stages' test "$stage" -eq 2

  # The library goes where the wrapper looks for it.
  # shellcheck disable=SC2016  # the texts are the files' own
  check 'the library is installed in the folder of the architecture' \
    has_text '/out/usr/local/lib/kvshim/$(uname -m)/libkvshim.so'
  # shellcheck disable=SC2016
  check 'and the wrapper looks there' \
    grep -qF '"/usr/local/lib/kvshim/$kvshim_arch/libkvshim.so"' "$entrypoint"

  if command -v meson > /dev/null; then
    run meson setup "$work/build" "$copied" -Dtests=false
    check 'what is copied is enough to configure the build' status_is 0
    run ninja -C "$work/build" -n libkvshim.so
    check 'and to plan it' status_is 0
  fi
}

case ${1:-} in
  plain | pid1 | image) "$1" ;;
  *)
    echo 'usage: test_entrypoint.sh plain | pid1 | image' >&2
    exit 2
    ;;
esac
echo "$1: $passed passed, $failed failed"
[[ $failed -eq 0 && $passed -gt 0 ]]
