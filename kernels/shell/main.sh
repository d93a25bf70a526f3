#!/bin/bash
# Entry of the bash kernel: starts the shell that runs the code, and stays beside it.
#
# bash sees a signal only after the command it waits for has ended, so an interrupt that reaches the shell alone would not stop
# `sleep 100`. This process takes it, and gives it to the whole process group of the shell, as a terminal does.

source=$(<"${BASH_SOURCE[0]%/*}/kernel.sh") || exit 70

# All the text of the shell. As a `-c` string nothing is read from a file later; messages say `bash: line 3: …` with the line of the
# run's code, because eval counts on from its own line, which is the first; and the code is at the top level, in no function.
# shellcheck disable=SC2016 # expanded by the shell that runs it
loop='\builtin trap "" INT; \builtin eval "$1"; __belljar_start "$@"; \builtin eval "$__belljar_state" 2>/dev/null; __belljar_started;'
# shellcheck disable=SC2016
loop+=' while __belljar_next; do \builtin eval "$__belljar_prepare"; \builtin eval "$__belljar_code"; { __belljar_after "$?" "$@"; } >/dev/null 2>&1; done'

shell=
last=0 # interrupt that was passed on, in microseconds
# shellcheck disable=SC2317 # called by the trap
forward() {
    [[ -n $shell ]] || return 0
    # One that comes while bash has not yet done what the one before it asks for would end it in the middle of that.
    local now=${EPOCHREALTIME/[.,]/}
    ((now - last >= 10000)) || return 0
    last=$now
    # It must not become another between the look at it and the signal.
    kill -STOP "$shell"
    ! listens || kill -INT -- "-$shell"
    kill -CONT "$shell"
}

# Whether the shell, once it stands still, catches interrupts, as it does while code runs. One that does not is between runs, or
# about to become another and would be lost.
# shellcheck disable=SC2317
listens() {
    local line lines stands=0
    # On a busy machine it may have to wait for a processor before it can.
    while ((stands == 0 && ${EPOCHREALTIME/[.,]/} - last < 10000000)); do
        mapfile -t lines 2>/dev/null <"/proc/$shell/status"
        [[ "${lines[*]}" == *State:$'\t'[RSD]* ]] || stands=1
    done
    for line in "${lines[@]}"; do
        # A mask in hexadecimal; the interrupt is its second bit. In a trap `return` alone means the status before the trap.
        [[ $line != SigCgt:*[014589cdCD] ]] || return 1
    done
    return 0
}
trap forward INT

# Whether the shell was ended by a signal: `wait` gives 137 for that and for `exit 137` alike, but the list of jobs has words for it.
killed=0
# shellcheck disable=SC2317 # called by the trap
look() {
    local said one line=
    # A pipe that is written to through its other name: a command substitution would need a process.
    exec {said}<<<''
    LC_ALL=C jobs >"/dev/fd/$said"
    while read -r -t 0 -u "$said" && read -r -u "$said" one; do line=$one; done
    exec {said}<&-
    [[ $line != '['*']'* || $line == *']'?' '+(' ')@(Done|Exit|Running|Stopped)* ]] || killed=1
}
trap look CHLD

# With job control it gets a process group of its own, and does not ignore SIGINT. The channel travels as descriptor 0, which
# bash never makes close-on-exec.
set -m
(exec -a bash "$BASH" --norc --noprofile -c "$loop" bash "$source" "$loop" "$BASH" new) 0<&3 3<&- &
shell=$!
exec 3<&- >/dev/null 2>&1
# From here on `wait` hears of its end only. One that is seen to stand still, and never to go on, would be asked for without a pause.
set +m

# An interrupt ends `wait` with 130, at times also one that the trap has been called for before.
while wait -f "$shell" && status=0 || status=$?; ((status == 130)) && kill -0 "$shell" 2>/dev/null; do :; done
if ((status == 130)); then
    # It has ended since, and maybe otherwise: of one that has been told of, nothing more is known.
    wait -f "$shell"
    again=$?
    ((again == 127)) || status=$again
fi
if ((killed && status > 128)); then
    signal=$((status - 128))
    trap - "$signal"
    kill -"$signal" "$BASHPID"
fi
exit "$status"
