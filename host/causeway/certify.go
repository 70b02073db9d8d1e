package main

import (
	"time"

	"github.com/spf13/cobra"

	"causeway/remote/mtls"
)

// How long certificates hold.
const (
	authorityDays = 3650
	hostDays      = 825
	day           = 24 * time.Hour
)

func certifyCommand() *cobra.Command {
	var dir string
	var days int
	c := &cobra.Command{
		Use:   "certify HOST [NAME|ADDRESS...]",
		Short: "Make the certificate by which other hosts know a host",
		Long: `Makes a key and a certificate for a host, by which others know it when GPU memory goes ahead of a VM (causeway migrate), and GPU servers and the hosts
that use them. HOST, and the names and addresses beside it, are those by which it is called. The first use makes the authority, ca.pem and ca-key.pem, in the
same folder: it is causeway ca init and causeway ca issue in one.

Copy ca.pem, HOST.pem and HOST-key.pem to the host's /etc/causeway/pki, as ca.pem, host.pem and host-key.pem. ca-key.pem stays: who has it can be any host.`,
		Example: `  causeway certify --dir ./pki hosta 192.0.2.1
  causeway certify --dir ./pki hostb
  scp pki/ca.pem root@hostb:/etc/causeway/pki/ca.pem
  scp pki/hostb.pem root@hostb:/etc/causeway/pki/host.pem
  scp pki/hostb-key.pem root@hostb:/etc/causeway/pki/host-key.pem`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			a, err := mtls.OpenAuthority(dir, authorityDays*day)
			if err != nil {
				return err
			}
			return issue(cmd.OutOrStdout(), a, days, names)
		},
	}
	c.Flags().StringVar(&dir, "dir", "pki", "`FOLDER` of the authority")
	c.Flags().IntVar(&days, "days", hostDays, "how long the certificate holds")
	return c
}
