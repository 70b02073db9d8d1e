package main

import "github.com/spf13/cobra"

func deviceCommand() *cobra.Command { return &cobra.Command{Use: "device", Hidden: true} }
