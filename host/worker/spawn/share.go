package spawn

import (
	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/share"
	"causeway/remote/sys"
)

// broker follows the messages by which workers share; false for others.
func (p *Process) broker(m link.Message) bool {
	switch m.Type {
	case link.Offer, link.Redeem, link.Withdraw:
	default:
		return false
	}
	defer sys.CloseAll(m.Files)
	answer := link.Message{Type: link.Answer, A: m.A, B: uint64(unix.EINVAL)}
	if len(m.Payload) < share.TokenSize || len(m.Files) > 1 {
		_ = p.link.Send(answer)
		return true
	}
	token := share.Token(m.Payload[:share.TokenSize])
	switch m.Type {
	case link.Withdraw:
		p.shared.Withdraw(p, token)
		return true
	case link.Offer:
		file := -1
		if len(m.Files) == 1 {
			file = m.Files[0]
		}
		if p.shared.Offer(p, token, m.Payload[share.TokenSize:], file) == nil {
			answer.B = 0
		}
	case link.Redeem:
		blob, file, err := p.shared.Redeem(token)
		if err == nil {
			answer.B, answer.Payload = 0, blob
		}
		if file >= 0 {
			defer unix.Close(file)
			answer.Files = []int{file}
		}
	}
	_ = p.link.Send(answer) // a worker that is gone needs none
	return true
}
