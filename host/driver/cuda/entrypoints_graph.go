package cuda

// graphEntryPoints are the driver functions of graphs and stream capture.
type graphEntryPoints struct{}
