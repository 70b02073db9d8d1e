package cuda

// arrayEntryPoints are the driver functions of arrays, textures, links and green contexts.
type arrayEntryPoints struct{}
