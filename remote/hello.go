package remote

import "strings"

// MaxText bounds the text behind a Hello.
const MaxText = 512

// ParseHello reads a handshake message and checks what every message has in common. Text is what
// follows it.
func ParseHello(b []byte) (h Hello, text string, err error) {
	if len(b) < HelloSize {
		return h, "", Violation("handshake message of %d bytes", len(b))
	}
	if err := h.Decode(b); err != nil {
		return h, "", Violation("handshake message: %v", err)
	}
	switch {
	case h.Magic != HelloMagic:
		return h, "", Violation("handshake magic is %#x, not %#x", h.Magic, HelloMagic)
	case h.TextLen > MaxText || int(h.TextLen) > len(b)-HelloSize:
		return h, "", Violation("handshake text of %d bytes", h.TextLen)
	}
	return h, strings.ToValidUTF8(string(b[HelloSize:HelloSize+int(h.TextLen)]), "?"), nil
}

// FormatHello is a handshake message; magic, version and text length are filled in.
func FormatHello(h Hello, text string) []byte {
	if len(text) > MaxText {
		text = text[:MaxText]
	}
	h.Magic, h.Version, h.TextLen = HelloMagic, ProtocolVersion, uint32(len(text))
	return append(h.Append(make([]byte, 0, HelloSize+len(text))), text...)
}
