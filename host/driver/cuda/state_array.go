package cuda

// arrayState is what a session keeps for arrays, textures, links and green contexts. Its zero value is ready.
type arrayState struct {
	links   table[*link]
	arrays  table[array]
	mipmaps table[mipmap]

	textures, surfaces table[texture]
	texRefs, surfRefs  table[reference]
	greens             table[green]
	descs              table[uint64]
	resources          map[string]struct{} // CUdevResource structs that the driver gave
}
