// Package tcpstore speaks to the key-value store that torchrun's agent serves at MASTER_ADDR:MASTER_PORT: the little of
// its protocol that it takes to tell other ranks an address. PyTorch calls it TCPStore (torch.distributed); its protocol is a byte
// that says what is asked, and arguments with their lengths, all little-endian.
package tcpstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// The requests, and the number that a client begins with.
const (
	validate = 0
	set      = 1
	get      = 3
	wait     = 6
	magic    = 0x3C85F7CE
)

// maxValue is more than anybody stores.
const maxValue = 1 << 20

// Client is a connection to a store.
type Client struct{ conn net.Conn }

// Dial connects to a store that serves already.
func Dial(ctx context.Context, address string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &Client{conn}
	if _, err := conn.Write(binary.LittleEndian.AppendUint32([]byte{validate}, magic)); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// key is how torch's own clients spell theirs.
func key(b []byte, name string) []byte { return text(b, "/"+name) }

func text(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// Set stores a value.
func (c *Client) Set(name, value string) error {
	_, err := c.conn.Write(text(key([]byte{set}, name), value))
	return err
}

// Get waits until there is a value, and returns it.
func (c *Client) Get(ctx context.Context, name string) (string, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	value, err := c.get(name)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("waiting for %q in the store at %v: %w", name, c.conn.RemoteAddr(), err)
	}
	return value, nil
}

func (c *Client) get(name string) (string, error) {
	if _, err := c.conn.Write(key(binary.LittleEndian.AppendUint64([]byte{wait}, 1), name)); err != nil {
		return "", err
	}
	var there [1]byte
	if _, err := io.ReadFull(c.conn, there[:]); err != nil {
		return "", err
	}
	if there[0] != 0 {
		return "", fmt.Errorf("the store answers %d", there[0])
	}
	if _, err := c.conn.Write(key([]byte{get}, name)); err != nil {
		return "", err
	}
	var n [8]byte
	if _, err := io.ReadFull(c.conn, n[:]); err != nil {
		return "", err
	}
	size := binary.LittleEndian.Uint64(n[:])
	if size > maxValue {
		return "", fmt.Errorf("the store answers with %d bytes", size)
	}
	value := make([]byte, size)
	_, err := io.ReadFull(c.conn, value)
	return string(value), err
}
