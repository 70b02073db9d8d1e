// Package config is causewayd's configuration: one TOML file, of which every key is documented in
// example.toml, the one place that holds the defaults' description. An unknown key is refused with
// its line and the nearest known one, a wrong value with the key, the value and what to write
// instead.
package config
