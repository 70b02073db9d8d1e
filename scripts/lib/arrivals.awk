# Where the pause of a VM that moves goes, from the log of a device process (-v): each state that it saved or loaded, with what its sessions took side by side:
# started (the worker's process and driver, since the state began), rebuilt, filled, and all of it. What comes ahead has started before.
function value(key, m) { return match($0, key "=[^ ]+") ? substr($0, RSTART + length(key) + 1, RLENGTH - length(key) - 1) : "-" }
/msg="session adopted, parked"/ { rebuilt[value("worker")] = value("rebuilt_in"); filled[value("worker")] = value("filled_in") }
/msg="session saved"/ { rows[n++] = sprintf("  guest process %-6s saved %s, %s bytes", value("guest_pid"), value("took"), value("bytes")) }
/msg="session loaded"/ {
  w = value("worker")
  rows[n++] = sprintf("  guest process %-6s started %s, rebuilt %s, filled %s; loaded %s after its turn began, %s bytes, %s ahead", value("guest_pid"), value("started_in"),
    rebuilt[w], filled[w], value("took"), value("bytes"), value("bytes_ahead"))
}
/msg="device state transferred"/ {
  printf "%s %s a VM's state in %s, %d sessions\n", value("time"), value("loaded") == "true" ? "loaded" : "saved", value("took"), n
  for (i = 0; i < n; i++) print rows[i]
  n = 0
}
/msg="device state transfer failed"/ { n = 0 }
