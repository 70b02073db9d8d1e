# What failed, from the output of go test: each test that did with what it says of it, and last, for a log of which people see the end, of each package that panicked or ran out of time the
# tests that ran, who else was in code of ours, and where the test itself stood. What programs under test logged is left out.
function pack(s) { sub(/\([^()]*\)$/, "", s); sub(/^causeway\//, "", s); return s }
function place(s) { sub(/^\t+/, "", s); sub(/ \+0x[0-9a-f]+$/, "", s); sub(/^.*\//, "", s); return s }

# A goroutine is known: what it was in of ours, innermost first.
function ended(  key) {
  if (head != "" && ours != "") {
    sub(/^goroutine [0-9]+ /, "", head)
    sub(/:$/, "", head)
    key = head ": " ours
    if (inTest) tests[++nTests] = key
    else if (++seen[key] == 1) others[++nOthers] = key
  }
  head = ours = frame = ""
  inTest = 0
}

# The report of a package, kept for the end.
function report(package, i) {
  ended()
  said[++nSaid] = "in " package ": " why
  if (running != "") said[++nSaid] = "  tests that ran:" running
  for (i = 1; i <= nOthers && i <= 12; i++) said[++nSaid] = "  " substr(others[i] (seen[others[i]] > 1 ? " (" seen[others[i]] " times)" : ""), 1, 400)
  if (nOthers > 12) said[++nSaid] = "  and " nOthers - 12 " more"
  for (i = 1; i <= nTests && i <= 4; i++) said[++nSaid] = "  the test: " substr(tests[i], 1, 600)
  dumps = nOthers = nTests = 0
  running = ""
  split("", seen)
}

/^ *--- FAIL: / { inside = 1; lines = 0; print; next }
inside && /^    / { if (!/ level=(DEBUG|INFO|WARN|ERROR) / && lines++ < 12) print; next }
{ inside = 0 }
/^(panic: |fatal error: )/ { if (!dumps) { why = $0; dumps = 1; head = ours = "" } }
/^(panic: |fatal error: |WARNING: DATA RACE|FAIL\t)/
dumps && /^\t\t/ && head == "" { sub(/^\t+/, ""); running = running " " $0; next }
dumps && /^goroutine [0-9]+ / { ended(); head = $0; next }
dumps && /^FAIL\t/ { report($2); next }
head == "" { next }
/^$/ { ended(); next }
/^testing\.tRunner\(/ { inTest = 1 }
/^\t/ { if (frame != "") ours = ours (ours == "" ? "" : " < ") frame " " place($0); frame = ""; next }
{ frame = /^causeway\// && !/\.TestMain\(/ ? pack($0) : "" }

END { if (dumps) report("a package"); for (i = 1; i <= nSaid; i++) print said[i] }
