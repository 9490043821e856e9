package recipe

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// Guide is the model that loss.name: gist compares a batch's texts with: its folder or hub id, alone or with options.
type Guide struct {
	Path      string   `yaml:"path" path:"~"`
	MaxLength Lengths  `yaml:"max_length,omitempty"` // default: what the folder says
	Prompts   *Prompts `yaml:"prompts,omitempty"`    // nil: the folder's
	Device    string   `yaml:"device,omitempty"`     // default: the model's
}

func (g *Guide) decode(d *decoder, path string, n *node) {
	*g = Guide{}
	d.structureOr(&g.Path, path, n, reflect.ValueOf(g).Elem())
}

// gistScale is 1 over the peer's temperature.
const gistScale = 100

// checkGuide resolves what gist has besides the other losses' options.
func (c *checker) checkGuide(l *Loss, at string) {
	if c.find(at+".scale") == nil && c.find(at+".temperature") == nil {
		l.Scale = gistScale
	}
	c.words(at+".margin_strategy", "absolute", "relative")
	c.require(l.Margin >= 0, at+".margin", "is %v, want a number of at least 0", l.Margin)
	if l.Guide == nil || l.Guide.Path == "" {
		c.fail(at+".guide", "is missing: the model that says which candidates are no negatives, a folder or hub id")
		return
	}
	c.require(l.Guide.MaxLength.Query >= 0 && l.Guide.MaxLength.Document >= 0, at+".guide.max_length", "is negative")
}

// gisted is the loss in the form of InfoNCE.
func (l Loss) gisted(o driving) loss.InfoNCE {
	out := loss.InfoNCE{
		Scale: l.Scale, Directions: []loss.Direction{loss.QueryToDoc}, Guide: &loss.Guide{Margin: l.Margin, Relative: l.MarginStrategy == "relative"},
		MaskDuplicates: l.MaskDuplicates != o.mask, TileRows: o.tile[0], TileCols: o.tile[1],
	}
	if l.ContrastAnchors {
		out.Directions = append(out.Directions, loss.QueryToQuery)
	}
	if l.ContrastPositives {
		out.Directions = append(out.Directions, loss.PositiveToPositive)
	}
	return out
}

// guide is a guide that a run has loaded.
type guide struct {
	folder *hfmodel.Folder
	model  *transformer.Model
	device gpustage.Device
	own    bool   // the device is closed with the guide
	hash   string // of its parameters
}

// openGuide loads the recipe's guide, if it has one, and says how it reads the run's texts.
func (x *Run) openGuide(ctx context.Context) (err error) {
	key, said := x.Recipe.guide()
	if said == nil {
		return nil
	}
	spec := *said
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", key, err)
		}
	}()
	g := &guide{device: x.device}
	x.guide = g
	if _, err := x.openFolder(ctx, spec.Path, &g.folder); err != nil {
		return err
	}
	if g.folder.Queries != nil {
		return fmt.Errorf("%s makes queries of weights of their tokens, without its transformer: such a model is no guide", spec.Path)
	}
	tok, err := embedder.LoadTokenizer(g.folder)
	if err != nil {
		return err
	}
	switch {
	case x.paper && spec.Device != "" && spec.Device != x.Recipe.Train.Device:
		g.device = gpustage.Dry{} // another one, which takes none of the model's memory
	case spec.Device != "" && !x.paper:
		if g.device, err = gpustage.OpenShare(spec.Device, x.share); err != nil {
			return fmt.Errorf("device: %w", err)
		}
		g.own = true
	}
	if g.model, err = x.loadGuide(); err != nil {
		return err
	}
	if g.model.Config.Tokens.Alone {
		return fmt.Errorf("%s gives vectors of tokens and no embeddings: a guide compares embeddings", g.folder.Dir)
	}
	if !x.paper {
		if err := g.hashModel(); err != nil {
			return err
		}
	}
	x.obs.tell(key+": ", embedder.HeadNote(g.folder, "", nil))
	c := g.model.Config
	text := &stages.Text{Tokenizer: tok, Vocab: c.Vocab}
	if text.QueryLength, err = embedder.MaxLengthOf(g.folder, c, spec.MaxLength.Query); err != nil {
		return fmt.Errorf("max_length: %w", err)
	}
	if text.DocumentLength, err = embedder.MaxLengthOf(g.folder, c, spec.MaxLength.Document); err != nil {
		return fmt.Errorf("max_length: %w", err)
	}
	if text.QueryPrompt, text.DocumentPrompt = g.folder.RolePrompts(); spec.Prompts != nil {
		text.Prompts = slices.Repeat([]stages.Prompts{stages.Prompts(*spec.Prompts)}, len(x.Recipe.Data.Train))
	}
	shorter := func(guide, model int) bool { return guide > 0 && (model == 0 || guide < model) }
	if q, d := text.QueryLength, text.DocumentLength; shorter(q, x.text.QueryLength) || shorter(d, x.text.DocumentLength) {
		x.obs.note("%s: the guide reads at most %s tokens of a query and %s of a document, the model %s and %s", key, limit(q), limit(d), limit(x.text.QueryLength), limit(x.text.DocumentLength))
	}
	x.text.Guide = text
	return errors.Join(embedder.CheckVocabulary(tok, c), embedder.CheckLength(tok, text.QueryLength, text.DocumentLength))
}

func (g *guide) hashModel() error {
	s, err := g.device.OpenStream()
	if err != nil {
		return err
	}
	defer s.Close()
	g.hash, err = hashParams(nil, s, g.model, func(transformer.Param) bool { return true })
	return err
}

// limit prints a number of tokens at which texts are cut.
func limit(n int) string {
	if n == 0 {
		return "all"
	}
	return fmt.Sprint(n)
}

// loadGuide makes the guide's model.
func (x *Run) loadGuide() (*transformer.Model, error) {
	head, err := embedder.HeadOf(x.guide.folder, "", nil)
	if err != nil {
		return nil, err
	}
	if x.paper {
		c, err := embedder.ConfigOf(x.guide.folder, nil)
		if err != nil {
			return nil, err
		}
		return transformer.New(x.guide.device, c, head, x.Recipe.Train.Rounding())
	}
	s, err := x.guide.device.OpenStream()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return embedder.LoadModel(x.guide.folder, x.guide.device, s, head, x.Recipe.Train.Rounding(), nil)
}

func (g *guide) close() error {
	if g == nil {
		return nil
	}
	var errs []error
	if g.model != nil {
		errs = append(errs, g.model.Free())
	}
	if g.folder != nil {
		errs = append(errs, g.folder.Close())
	}
	if g.own {
		errs = append(errs, g.device.Close())
	}
	return errors.Join(errs...)
}

// guided is the guide of a graph whose encoder's model is on a device; nil if there is none.
func (x *Run) guided(model gpustage.Device) *stages.Guide {
	if x.guide == nil {
		return nil
	}
	device := 0
	if x.guide.device != model {
		device = 1
	}
	return &stages.Guide{Model: x.guide.model, Device: device}
}

// onPaper is the guide, of a run whose model is on one device, where that one computes nothing.
func (g *guide) onPaper(model gpustage.Device, d gpustage.Dry) (*guide, error) {
	if g == nil {
		return nil, nil
	}
	if g.device != model { // another device on paper, too
		d = gpustage.Dry{Like: g.device}
	}
	m, err := transformer.New(d, g.model.Config, g.model.Head, g.model.Options)
	return &guide{folder: g.folder, model: m, device: d}, err
}

// guideHere tells whether there is a guide whose memory is that of the model's device.
func (x *Run) guideHere() bool {
	g := x.guide
	return g != nil && (g.device == x.device || g.device.Info().Threads > 0 && x.device.Info().Threads > 0)
}

// guideMemory is what the guide takes on the model's device.
func (x *Run) guideMemory() int64 {
	g := x.guide
	if !x.guideHere() {
		return 0
	}
	longest := max(x.expected(x.text.Guide))
	pass := make([]int, min(max(1, g.device.Info().PassTokens()/longest), int(x.sequences())))
	for i := range pass {
		pass[i] = longest
	}
	rows := x.sequences() // of this rank, and all again if they are gathered; and once in the host's memory
	if x.ranks != nil && x.Recipe.Loss.GatherAcrossDevices {
		rows += x.batchRows() * int64(x.columns())
	}
	return int64(g.model.Params.Mem.Bytes()) + g.model.PackedBytes(false) + int64(g.model.Memory(pass).Forward) + (rows+x.sequences())*int64(g.model.EmbeddingSize())*4
}
