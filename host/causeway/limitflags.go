package main

import (
	"encoding"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"causeway/host/api"
	"causeway/host/limit"
)

// words are a limit as it is written.
type words[T any] interface {
	*T
	encoding.TextUnmarshaler
	fmt.Stringer
}

// optional is a flag of a limit: nil until it is named.
type optional[T any, P words[T]] struct {
	to   *P
	kind string
}

var _ pflag.Value = optional[limit.Memory, *limit.Memory]{}

// Set implements pflag.Value.
func (o optional[T, P]) Set(s string) error {
	v := P(new(T))
	if err := v.UnmarshalText([]byte(s)); err != nil {
		return err
	}
	*o.to = v
	return nil
}

func (o optional[T, P]) String() string {
	if o.to == nil || *o.to == nil {
		return ""
	}
	return (*o.to).String()
}

// Type implements pflag.Value.
func (o optional[T, P]) Type() string { return o.kind }

// What limits are, for help. Each is used with what holds if the flag is left out.
const (
	memoryUsage   = "limit of GPU memory, contexts included, as in 16GiB (16GB and 16G are the same); none: the whole GPU"
	capUsage      = "most per cent of the GPU's time, 1 to 100; none: no cap"
	sessionsUsage = "most CUDA processes at once, 1 to 1000"
	hostUsage     = "most of the host's memory that requests of its CUDA programs may hold, one program's half of it, as in 8GiB"
	userUsage     = "most CUDA processes of one user of the guest, root excepted, 1 to 1000, or half of all"
	profileUsage  = "limits by `NAME`, as causeway profiles lists them"
)

var shareUsage = fmt.Sprintf("share of the GPU's time when several want it, 1 to %d, relative to others', who have %d unless they say so", limit.MostShare, limit.DefaultShare)

// profileFlag is a --profile that is left out or names something: an empty one, as an unset
// variable leaves, would set no limit.
type profileFlag struct{ name *string }

func (p profileFlag) String() string {
	if p.name == nil {
		return ""
	}
	return *p.name
}

func (p profileFlag) Set(name string) error {
	if name == "" {
		return errors.New("it is empty: name a profile, as in quarter, or leave --profile out")
	}
	*p.name = name
	return nil
}

func (profileFlag) Type() string { return "string" }

func memoryFlag(c *cobra.Command, to **limit.Memory, rest string) {
	c.Flags().Var(optional[limit.Memory, *limit.Memory]{to, "SIZE"}, "memory", memoryUsage+rest)
	completeWords(c, "memory", "none", "4GiB", "16GiB")
}

func shareFlag(c *cobra.Command, to **limit.Share, rest string) {
	c.Flags().Var(optional[limit.Share, *limit.Share]{to, "N"}, "share", shareUsage+rest)
	completeWords(c, "share", "50", "100", "200")
}

func capFlag(c *cobra.Command, to **limit.Cap, rest string) {
	c.Flags().Var(optional[limit.Cap, *limit.Cap]{to, "PERCENT"}, "cap", capUsage+rest)
	completeWords(c, "cap", "none", "25", "50")
}

func sessionsFlag(c *cobra.Command, to **limit.Sessions, rest string) {
	c.Flags().Var(optional[limit.Sessions, *limit.Sessions]{to, "N"}, "sessions", sessionsUsage+rest)
}

func hostMemoryFlag(c *cobra.Command, to **limit.HostMemory, rest string) {
	c.Flags().Var(optional[limit.HostMemory, *limit.HostMemory]{to, "SIZE"}, "host-memory", hostUsage+rest)
	completeWords(c, "host-memory", "4GiB", "16GiB")
}

func userSessionsFlag(c *cobra.Command, to **limit.UserSessions, rest string) {
	c.Flags().Var(optional[limit.UserSessions, *limit.UserSessions]{to, "N"}, "user-sessions", userUsage+rest)
}

func completeWords(c *cobra.Command, name string, list ...string) {
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp))
}

// changeFlags are all limits, for commands that ask causewayd. What is not named stays, or is the
// configuration's.
func changeFlags(c *cobra.Command, node *nodeFlags, to *api.Change) {
	c.Flags().Var(profileFlag{&to.Profile}, "profile", profileUsage+": memory, share and cap; those named beside it go before")
	_ = c.RegisterFlagCompletionFunc("profile", node.completeProfile)
	memoryFlag(c, &to.Memory, "")
	shareFlag(c, &to.Share, "")
	capFlag(c, &to.Cap, "")
	sessionsFlag(c, &to.Sessions, "")
	hostMemoryFlag(c, &to.HostMemory, "")
	userSessionsFlag(c, &to.UserSessions, "")
}

// unlimited warns of a vGPU that may take its neighbours' memory; empty: it has a limit.
func unlimited(key string, l api.Limits) string {
	if l.Memory != 0 {
		return ""
	}
	return fmt.Sprintf("%s has no limit of memory: it may take all that the GPU has, and others on it then find none; `causeway limits %[1]s --memory SIZE` (or --profile NAME) sets one", key)
}
