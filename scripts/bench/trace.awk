# Joins what `go tool trace -d=parsed` prints of several processes of one machine, each to its file, into one line for what a goroutine began or ended, in the order of time:
#
#   awk -f scripts/bench/trace.awk relay.txt server.txt | sort -n | awk '$1 > FROM && $1 < TO'
#
# Microseconds since the first event, the file's name, the goroutine with the function it began with, what it did, and where: the innermost function of ours. Both processes' clock is the machine's.
function emit() {
	if (line == "")
		return
	if (last != "")
		root[id] = last
	printf "%.1f %s G%s(%s) %s %s\n", t, role, id, root[id], what, first
	line = ""
}

function short(f) { sub(/^.*\//, "", f); return f }

FNR == 1 { emit(); role = FILENAME; sub(/^.*\//, "", role); sub(/\..*$/, "", role); split("", root) }
/^M=/ {
	emit()
	if (!match($0, / Time=[0-9]+/))
		next
	at = substr($0, RSTART + 6, RLENGTH - 6) + 0
	if (start == "")
		start = at
	if (!match($0, /GoID=[0-9]+ [A-Za-z]+->[A-Za-z]+/))
		next
	split(substr($0, RSTART + 5, RLENGTH - 5), p, " ")
	id = role p[1]; what = p[2]; t = (at - start) / 1000
	by = match($0, / G=[0-9]+ /) ? substr($0, RSTART + 3, RLENGTH - 4) : ""
	if (by != "" && by != p[1])
		what = what " by " root[role by]
	if (match($0, /Reason="[^"]+"/))
		what = what " " substr($0, RSTART + 7, RLENGTH - 7)
	first = last = ""; line = $0; mine = by == p[1]
	next
}
/^\tcauseway\// {
	f = short($1)
	if (first == "")
		first = f
	if (mine)
		last = f
}
END { emit() }
