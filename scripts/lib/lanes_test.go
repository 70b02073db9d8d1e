package lib

import (
	"os/exec"
	"strings"
	"testing"
)

// laneScript runs one stage, whose runs say what stands in the files 1, 2, ... of the folder before
// they fail; without such a file a run passes.
const laneScript = `set -uo pipefail
. common.sh
. lanes.sh
dir=$1 logs=$1/logs in_turn=
mkdir "$logs"
stage_vm() { local n; n=$(($(cat "$dir/n" 2>/dev/null || echo 0) + 1)); echo $n >"$dir/n"; [ -e "$dir/$n" ] || return 0; cat "$dir/$n"; cat "$dir/$n" >"$logs/vm-qemu.log"; return 1; }
say_in() { printf '%s\n' "$2" >"$dir/$1"; }
lanes_begin
lanes_plan 'vm 10'
`

// laneOf is what the lanes say of a stage whose runs end so.
func laneOf(t *testing.T, runs string) string {
	t.Helper()
	out, err := exec.Command("bash", "-c", laneScript+runs+"\nlanes_run vm\necho \"runs $(cat \"$dir/n\") passed $stages_passed failed $stages_failed\"", "-", t.TempDir()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestStageOnceMore: a stage that lost its guest to the emulator, by what nobody else can have
// done, runs once more, which is said; not a third time, and not for anything else that failed.
func TestStageOnceMore(t *testing.T) {
	const (
		timer     = "say_in 1 \"        QEMU's emulator lost a timer of the guest's, which does not boot\"\n"
		assertion = "say_in 1 'qemu-system-x86_64: iotlb_to_section: Assertion ... failed.'\n"
	)
	for _, c := range []struct{ name, runs, said, end string }{
		{"a timer", timer, "lost a timer of a guest that booted", "runs 2 passed 1 failed 0"},
		{"no process", "say_in 1 \"        QEMU's emulator has not brought the guest's kernel to its first process within 240 s\"\n",
			"did not come to its first process", "runs 2 passed 1 failed 0"},
		{"an assertion", assertion, "QEMU itself aborted", "runs 2 passed 1 failed 0"},
		{"a timer twice", timer + strings.Replace(timer, "1", "2", 1), "once more", "runs 2 passed 0 failed 1"},
		{"a failure", "say_in 1 'FAILED  something'\n", "", "runs 1 passed 0 failed 1"},
		{"a kernel that complains later", "say_in 1 \"rcu_preempt kthread timer wakeup didn't happen\"\n", "", "runs 1 passed 0 failed 1"},
		{"nothing", "", "", "runs 1 passed 1 failed 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := laneOf(t, c.runs)
			if !strings.Contains(out, c.end) || !strings.Contains(out, c.said) || strings.Contains(out, "once more") != (c.said != "") {
				t.Error(out)
			}
		})
	}
}

// TestLostTimer: whoever waits for a guest to boot whose kernel says that a timer was lost says so
// at once, and the script ends; what another guest's said before is not this one's, nor what is
// said once it has booted.
func TestLostTimer(t *testing.T) {
	const script = `set -uo pipefail
. common.sh
. guest.sh
dir=$1 console_log=$1/console.log qemu_pid=$$
guest_channel "$dir"
lost="rcu: 	Possible timer handling issue on cpu=1 timer-softirq=2"
`
	for _, c := range []struct{ name, guest, want string }{
		{"lost", `(sleep 0.2; echo "$lost" >>"$console_log") & guest_up; echo "status $?"`, "FAILED  the guest boots"},
		{"an earlier guest's", `echo "$lost" >>"$console_log"; (sleep 2.5; echo '@agent ready' >&3) & guest_up; echo "status $?"`, "status 0"},
		{"later", `echo '@agent ready' >&3; guest_up; echo "$lost" >>"$console_log"; (sleep 2.5; echo '@end 1 0' >&3) & await '@end 1 *'; echo "status $?"`, "status 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := exec.Command("bash", "-c", script+c.guest+"\nwait", "-", t.TempDir()).CombinedOutput()
			lost := c.name == "lost" // the script has ended then
			if lost != (err != nil) || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "lost a timer") != lost || lost && strings.Contains(string(out), "status") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestUnborn: a guest that does not come to its first process is the emulator's, and the script
// ends; one that has come there and then says nothing is waited for as ever, and so is one of
// another image, whose first process is not known to say anything.
func TestUnborn(t *testing.T) {
	const script = `set -uo pipefail
. common.sh
. guest.sh
dir=$1 tmp=$1 console_log=$1/console.log qemu_pid=$$ unborn_s=1
guest_channel "$dir"
echo '@causeway init' >>"$console_log" # of an earlier guest
processors() { echo 'RAX=1 RIP=ffffffff81000000'; }
`
	for _, c := range []struct{ name, guest, want string }{
		{"unborn", `guest_up; echo "status $?"`, "| RAX=1 RIP=ffffffff81000000\nFAILED  the guest boots"},
		{"born", `(sleep 0.2; echo '@causeway init' >>"$console_log"; sleep 4; echo '@agent ready' >&3) & guest_up; echo "status $?"`, "status 0"},
		{"late", `(sleep 0.5; echo '@causeway init' >>"$console_log"; echo '@agent ready' >&3) & guest_up; echo "status $?"`, "status 0"},
		{"another image", `first_process=; (sleep 4; echo '@agent ready' >&3) & guest_up; echo "status $?"`, "status 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := exec.Command("bash", "-c", script+c.guest+"\nwait", "-", t.TempDir()).CombinedOutput()
			if (c.name == "unborn") != (err != nil) || !strings.Contains(string(out), c.want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
