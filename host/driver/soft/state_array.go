package soft

// arrayState is what a session keeps for arrays, textures, links and green contexts. Its zero value
// is ready.
type arrayState struct {
	links    table[*link]
	arrays   table[*array]
	mipmaps  table[*mipmap]
	textures table[*texture]
	surfaces table[*texture]

	texSet    *textureSet // nil: no objects yet
	texSerial uint64      // value of the next object
}
