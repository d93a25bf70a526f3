#!/bin/bash
# Entry of the bash kernel: becomes a shell whose only text is the loop below, with the functions of kernel.sh.
# As a `-c` string nothing of it is read from a file later; messages say `bash: line 3: …` with the line of the run's code,
# because eval counts on from its own line, which is the first; and the code is at the top level, not inside of a function.

source=$(<"${BASH_SOURCE[0]%/*}/kernel.sh") || exit 70
# shellcheck disable=SC2016 # expanded by the shell that runs it
loop='\builtin eval "$1"; __belljar_start "$@"; \builtin eval "$__belljar_state" 2>/dev/null; __belljar_started;'
# shellcheck disable=SC2016
loop+=' while __belljar_next; do \builtin eval "$__belljar_code"; { __belljar_after "$?" "$@"; } >/dev/null 2>&1; done'

# The channel travels as descriptor 0, which bash never makes close-on-exec.
exec 0<&3 3<&-
exec -a bash "$BASH" --norc --noprofile -c "$loop" bash "$source" "$loop" "$BASH" new
