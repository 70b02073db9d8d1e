package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"causeway/remote/mtls"
)

// caFlags say which authority is meant.
type caFlags struct{ dir string }

func (f *caFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.dir, "dir", "pki", "`FOLDER` of the authority")
}

func caCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "ca",
		Short: "Make and revoke the certificates by which hosts know one another",
		Long: `Keeps a small authority in a folder, for hosts of Causeway alone: GPU servers and the hosts whose VMs use them (docs/REMOTE.md), and hosts between
which VMs move (docs/MIGRATION.md). Keep the folder off those hosts: who has ca-key.pem can be any of them. An organisation's own authority does as well: its
certificates are for servers and clients, of an authority that issues for hosts of Causeway only, and its revocation list, as PEM, is the file "revoked".

A host has, in /etc/causeway/pki: ca.pem; its own certificate and key as host.pem and host-key.pem; and the list, revoked, once something was revoked. All of
them are read at each connection.`,
		Example: `  causeway ca init --dir ./pki
  causeway ca issue --dir ./pki gpu1 gpu1.example.net 192.0.2.1
  causeway ca issue --dir ./pki hosta
  scp pki/ca.pem pki/revoked root@gpu1:/etc/causeway/pki/
  scp pki/gpu1.pem root@gpu1:/etc/causeway/pki/host.pem
  scp pki/gpu1-key.pem root@gpu1:/etc/causeway/pki/host-key.pem
  causeway ca revoke --dir ./pki hosta      # and copy pki/revoked to all hosts`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(caInitCommand(), caIssueCommand(), caRevokeCommand(), caListCommand())
	return c
}

func caInitCommand() *cobra.Command {
	var f caFlags
	var days int
	c := &cobra.Command{
		Use:     "init",
		Short:   "Make an authority",
		Long:    "Makes an authority: its certificate ca.pem, its key ca-key.pem, and its revocation list, which is empty. One that is there is left as it is, and that is an error.",
		Example: "  causeway ca init --dir ./pki",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := mtls.NewAuthority(f.dir, time.Duration(days)*day)
			if err != nil {
				return err
			}
			list, err := a.List()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "an authority is in %s, for %d days; its revocation list is %s\n", f.dir, days, list)
			return err
		},
	}
	f.register(c)
	c.Flags().IntVar(&days, "days", authorityDays, "how long the authority's certificate holds")
	return c
}

func caIssueCommand() *cobra.Command {
	var f caFlags
	var days int
	c := &cobra.Command{
		Use:   "issue HOST [NAME|ADDRESS...]",
		Short: "Make a host's certificate",
		Long: `Makes a key and a certificate for a host. HOST names it to other hosts, in remote.allow and in their logs; it is called by HOST and by the names and
addresses beside it. A certificate that it has already holds until it expires or is revoked.`,
		Example: "  causeway ca issue --dir ./pki gpu1 gpu1.example.net 192.0.2.1",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			a, err := mtls.LoadAuthority(f.dir)
			if err != nil {
				return err
			}
			return issue(cmd.OutOrStdout(), a, days, names)
		},
	}
	f.register(c)
	c.Flags().IntVar(&days, "days", hostDays, "how long the certificate holds")
	return c
}

// issue makes a certificate and says where it is.
func issue(out io.Writer, a *mtls.Authority, days int, names []string) error {
	f, err := a.Issue(time.Duration(days)*day, names...)
	if err != nil {
		return err
	}
	until := fmt.Sprintf("hold for %d days", days)
	switch end := a.End(); {
	case days <= 0:
		until = fmt.Sprintf("have expired: --days %d", days)
	case end.Before(time.Now().AddDate(0, 0, days)):
		until = "hold until " + end.Format(time.DateOnly) + ", when the authority ends: another one is made in another folder (causeway ca init)"
	}
	_, err = fmt.Fprintf(out, "%s and %s, of the authority %s, %s\n", f.Certificate, f.Key, f.CA, until)
	return err
}

func caRevokeCommand() *cobra.Command {
	var f caFlags
	c := &cobra.Command{
		Use:   "revoke HOST|SERIAL...",
		Short: "Have no host accept a certificate any more",
		Long: `Revokes all certificates of a host, or one by its serial number (causeway ca list), in the list FOLDER/revoked. Copy that to /etc/causeway/pki of every
other host: from then on each refuses the host at its next connection, and a GPU server refuses to renew its leases, which end within 30 seconds.`,
		Example: "  causeway ca revoke --dir ./pki hosta",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := mtls.LoadAuthority(f.dir)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			for _, who := range args {
				list, err := a.Revoke(who)
				if err != nil {
					return err
				}
				for _, i := range list {
					fmt.Fprintf(out, "revoked: %s, serial number %s\n", i.Host, i.Serial)
				}
				if len(list) == 0 {
					fmt.Fprintf(out, "%s: nothing that was not revoked before\n", who)
				}
			}
			list, err := a.List()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "copy %s to /etc/causeway/pki/ of every host\n", list)
			return err
		},
	}
	f.register(c)
	return c
}

func caListCommand() *cobra.Command {
	var f caFlags
	var json bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the certificates of hosts that were issued",
		Long:    "Lists the certificates that the authority has issued, with those that a later one of the same host has replaced, which hold until they expire or are revoked.",
		Example: "  causeway ca list --dir ./pki",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := mtls.LoadAuthority(f.dir)
			if err != nil {
				return err
			}
			list, err := a.Issued()
			if err != nil {
				return err
			}
			if json {
				return printJSON(cmd.OutOrStdout(), append([]mtls.Issued{}, list...))
			}
			return printIssued(cmd.OutOrStdout(), list, time.Now())
		},
	}
	f.register(c)
	c.Flags().BoolVar(&json, "json", false, "print JSON")
	return c
}

func printIssued(out io.Writer, list []mtls.Issued, now time.Time) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "HOST\tSERIAL\tUNTIL\tSTATE\tNAMES")
	for _, i := range list {
		state := "holds"
		switch {
		case !i.Revoked.IsZero():
			state = "revoked " + i.Revoked.Format(time.DateOnly)
		case now.After(i.End):
			state = "expired"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", i.Host, i.Serial, i.End.Format(time.DateOnly), state, strings.Join(i.Names, " "))
	}
	return t.Flush()
}
