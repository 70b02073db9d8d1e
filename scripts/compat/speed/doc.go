// Command causeway-speed measures programs natively and under `causeway run` in one go and prints
// one line per measure: name, value, unit, native value, ratio (value/native), goal for the ratio.
//
// A program says how it is measured in a line "#: speed: serve ARG..." or "#: speed: spawn TIMES
// ARG...". A server is started once on each side; then both are asked for samples in turn, native
// first in even rounds, so that a machine's moods fall on both. A spawned program's whole life is a
// sample, and it may print measures of its own; on each side one spawner starts it again and again,
// so that Causeway has a worker waiting, as on a host in daily use. Values are medians.
package main
