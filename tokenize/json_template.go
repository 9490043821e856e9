package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

func parsePostProcessor(raw json.RawMessage) (template, error) {
	kind, err := componentType(raw)
	if err != nil {
		return template{}, in("post_processor", err)
	}
	switch kind {
	case "", "ByteLevel": // which trims offsets
		return bareTemplate(), nil
	case "Sequence":
		return parseProcessors(raw)
	case "BertProcessing", "RobertaProcessing":
		var c struct{ Sep, Cls bertSpecial }
		if err := decodeJSON(raw, &c); err != nil {
			return template{}, in("post_processor", err)
		}
		if !c.Sep.set || !c.Cls.set {
			return template{}, fmt.Errorf("post_processor: %s needs sep and cls", kind)
		}
		if err := errors.Join(checkID(c.Cls.id), checkID(c.Sep.id)); err != nil {
			return template{}, in("post_processor", err)
		}
		if kind == "RobertaProcessing" {
			return robertaTemplate(c.Cls.id, c.Sep.id), nil
		}
		return bertTemplate(c.Cls.id, c.Sep.id), nil
	case "TemplateProcessing":
		var c struct {
			Single, Pair []templatePieceJSON
			Specials     map[string]struct{ IDs []int32 } `json:"special_tokens"`
		}
		if err := decodeJSON(raw, &c); err != nil {
			return template{}, in("post_processor", err)
		}
		if c.Single == nil || c.Pair == nil || c.Specials == nil {
			return template{}, errors.New("post_processor: TemplateProcessing needs single, pair and special_tokens")
		}
		pieces := func(name string, sequences int, from []templatePieceJSON) ([]templatePiece, error) {
			out := make([]templatePiece, 0, len(from))
			used := [2]bool{}
			for _, p := range from {
				switch {
				case p.SpecialToken != nil:
					special, ok := c.Specials[p.SpecialToken.ID]
					if !ok {
						return nil, fmt.Errorf("post_processor: %s uses %q, which special_tokens lacks", name, p.SpecialToken.ID)
					}
					for _, id := range special.IDs {
						if err := checkID(id); err != nil {
							return nil, fmt.Errorf("post_processor: special token %q: %w", p.SpecialToken.ID, err)
						}
					}
					out = append(out, templatePiece{ids: append([]int32{}, special.IDs...), typeID: p.SpecialToken.TypeID})
				case p.Sequence != nil:
					sequence := strings.Index("AB", p.Sequence.ID)
					if len(p.Sequence.ID) != 1 || sequence < 0 || sequence >= sequences {
						return nil, fmt.Errorf("post_processor: %s uses sequence %q", name, p.Sequence.ID)
					}
					if used[sequence] { // which Hugging Face cuts as if it stood there once
						return nil, unsupported("post_processor: TemplateProcessing with a second", p.Sequence.ID, "each text once is")
					}
					used[sequence] = true
					out = append(out, templatePiece{sequence: sequence, typeID: p.Sequence.TypeID})
				default:
					return nil, fmt.Errorf("post_processor: %s has a piece that is neither SpecialToken nor Sequence", name)
				}
			}
			return out, nil
		}
		single, err := pieces("single", 1, c.Single)
		if err != nil {
			return template{}, err
		}
		pair, err := pieces("pair", 2, c.Pair)
		return template{single: single, pair: pair}, err
	}
	return template{}, unsupported("post_processor type", kind, "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel and Sequence are")
}

// parseProcessors reads a Sequence: at most one of its parts adds tokens.
func parseProcessors(raw json.RawMessage) (template, error) {
	var c struct {
		Processors []json.RawMessage `json:"processors"`
	}
	if err := decodeJSON(raw, &c); err != nil {
		return template{}, in("post_processor", err)
	}
	if c.Processors == nil {
		return template{}, errors.New("post_processor: Sequence needs processors")
	}
	tmpl, adding := bareTemplate(), false
	for _, part := range c.Processors {
		kind, err := componentType(part)
		if err != nil {
			return template{}, in("post_processor", err)
		}
		if kind == "" || kind == "ByteLevel" {
			continue
		}
		if adding || kind == "Sequence" {
			return template{}, unsupported("post_processor: Sequence with a second", kind, "one of TemplateProcessing, BertProcessing and RobertaProcessing, and ByteLevel, are")
		}
		adding = true
		if tmpl, err = parsePostProcessor(part); err != nil {
			return template{}, err
		}
	}
	return tmpl, nil
}

type templatePieceJSON struct {
	SpecialToken, Sequence *struct {
		ID     string `json:"id"`
		TypeID int32  `json:"type_id"`
	}
}

// bertSpecial is ["[SEP]", 102].
type bertSpecial struct {
	id  int32
	set bool
}

func (b *bertSpecial) UnmarshalJSON(data []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("want a token and its id, got %s", data)
	}
	b.set = true
	return json.Unmarshal(pair[1], &b.id)
}
