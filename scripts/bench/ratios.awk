# Joins the lines "name value unit" of one run (scripts/bench/remote.sh, rdma.sh): what calls and copies through a carrier take against that carrier alone.
#
#   awk -v link=tls -v words=TLS -v goal=0.95 -f scripts/bench/ratios.awk FIGURES
#
# link: whose LINK_round_trip a call is held against;  words: what that is called;  goal: of copies from 1 MiB on.
# A copy of n bytes is held against LINK_copy_n, n bytes there and one back, and against the rates (GB/s) of other programs on the same link, where there are lines of theirs: iperf3_stream, ib_read_bw, ib_write_bw.
{ v[$1] = $2 }

function call(name) {
	if (v["remote_" name] > 0 && v[link "_round_trip"] > 0)
		printf "ratio_%s %.2f of 1.15 x %s ping-pong + local (at most 1)\n", name, v["remote_" name] / (1.15 * v[link "_round_trip"] + v["local_" name]), words
}

# rate adds what a copy is of another program's rate.
function rate(name, who, size, took) {
	return v[name] > 0 ? sprintf(", %.2f of %s", size / took / 1e3 / v[name], who) : ""
}

END {
	call("sync_idle")
	call("launch_sync")
	for (size = 4096; size <= 1073741824; size *= 2) for (d = 0; d < 2; d++) {
		way = d ? "d2h" : "h2d"; took = v["remote_copy_pinned_" way "_" size]
		if (took > 0)
			printf "ratio_copy_%s_%d %.2f of %s alone%s%s%s\n", way, size, v[link "_copy_" size] / took, words, rate("iperf3_stream", "iperf3", size, took),
				d ? rate("ib_write_bw", "ib_write_bw", size, took) : rate("ib_read_bw", "ib_read_bw", size, took), (size >= 1048576 ? " (at least " goal ")" : "")
	}
}
