// Package controller runs the fleet's controller: one leader, which keeps every GPU host of a
// configuration (package lease) and publishes what they offer (package pool). It holds nothing that
// a second one would not find: what is allocated stands in the API server, what is reserved at the
// hosts.
package controller
