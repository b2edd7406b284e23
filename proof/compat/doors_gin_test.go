package compat_test

import (
	"context"
	"errors"
	"html/template"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-contrib/gzip"
	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/render"

	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
)

func init() { gin.SetMode(gin.ReleaseMode) }

// ginFramework is the door of gin.
type ginFramework struct {
	door
	mount func(guardian) gin.HandlerFunc
}

func ginDoor() door {
	d := &ginFramework{door{name: "gin"}, ginidempotency.Middleware}
	d.errors()
	d.aborts()
	d.answers()
	d.layers()
	return d.door
}

var errDeclined = errors.New("declined")

func (d *ginFramework) errors() {
	d.way(erring, "c.JSON(402, gin.H)", replayed, func(c *gin.Context) {
		c.JSON(http.StatusPaymentRequired, gin.H{"error": "declined"})
	})
	d.way(erring, "c.JSON(503, gin.H)", runsAgain, func(c *gin.Context) {
		c.JSON(http.StatusServiceUnavailable, gin.H{"error": "down"})
	})
	d.way(erring, "c.Error(err)", runsAgain, func(c *gin.Context) { _ = c.Error(errDeclined) })
	d.way(erring, "c.Error(err); c.JSON(402, gin.H)", replayed, func(c *gin.Context) {
		_ = c.Error(errDeclined)
		c.JSON(http.StatusPaymentRequired, gin.H{"error": "declined"})
	})
	d.way(erring, "c.Error(err); c.Status(202)", replayed, func(c *gin.Context) {
		_ = c.Error(errors.New("no log"))
		c.Status(http.StatusAccepted)
	})
	d.way(erring, "c.ShouldBindJSON(&strings); c.JSON(400, gin.H)", replayed, func(c *gin.Context) {
		var into []string
		if c.ShouldBindJSON(&into) != nil {
			c.JSON(http.StatusBadRequest, gin.H{"error": "not strings"})
		}
	})
}

func (d *ginFramework) aborts() {
	d.way(aborting, "c.AbortWithStatus(402)", replayed, func(c *gin.Context) {
		c.AbortWithStatus(http.StatusPaymentRequired)
	})
	d.way(aborting, "c.AbortWithStatus(200)", replayed, func(c *gin.Context) { c.AbortWithStatus(http.StatusOK) })
	d.way(aborting, "c.AbortWithStatusJSON(402, gin.H)", replayed, func(c *gin.Context) {
		c.AbortWithStatusJSON(http.StatusPaymentRequired, gin.H{"error": "declined"})
	})
	d.way(aborting, "c.AbortWithStatusPureJSON(402, gin.H)", replayed, func(c *gin.Context) {
		c.AbortWithStatusPureJSON(http.StatusPaymentRequired, gin.H{"error": "<declined>"})
	})
	d.way(aborting, "c.AbortWithStatus(503)", runsAgain, func(c *gin.Context) {
		c.AbortWithStatus(http.StatusServiceUnavailable)
	})
	d.way(aborting, "c.AbortWithError(402, err)", runsAgain, func(c *gin.Context) {
		_ = c.AbortWithError(http.StatusPaymentRequired, errDeclined)
	})
	d.way(aborting, "c.Abort()", replayed, func(c *gin.Context) { c.Abort() })
	d.way(aborting, "c.BindJSON(&strings)", runsAgain, func(c *gin.Context) {
		var into []string
		_ = c.BindJSON(&into)
	})
	d.way(aborting, "panic(http.ErrAbortHandler)", runsAgain, func(*gin.Context) { panic(http.ErrAbortHandler) })
	d.way(panicking, "panic", runsAgain, d.crash)
}

func (*ginFramework) crash(*gin.Context) { panic("crash") }

// json answers with the bound path parameter and body.
func (*ginFramework) json(c *gin.Context) {
	var charge struct {
		Amount int `json:"amount" binding:"required"`
	}
	if err := c.ShouldBindJSON(&charge); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	c.Header("Location", c.FullPath())
	c.JSON(http.StatusCreated, gin.H{"id": c.Param("id"), "amount": charge.Amount})
}

func (d *ginFramework) answers() {
	charge := gin.H{"id": "<1>"}
	for _, w := range []struct {
		kind kind
		name string
		do   gin.HandlerFunc
	}{
		{asJSON, "c.JSON(201, charge)", d.json},
		{asJSON, "c.IndentedJSON", func(c *gin.Context) { c.IndentedJSON(http.StatusCreated, charge) }},
		{asJSON, "c.SecureJSON", func(c *gin.Context) { c.SecureJSON(http.StatusCreated, []string{"1"}) }},
		{asJSON, "c.JSONP", func(c *gin.Context) { c.JSONP(http.StatusCreated, charge) }},
		{asJSON, "c.AsciiJSON", func(c *gin.Context) { c.AsciiJSON(http.StatusCreated, gin.H{"id": "ü"}) }},
		{asJSON, "c.PureJSON", func(c *gin.Context) { c.PureJSON(http.StatusCreated, charge) }},
		{asString, `c.String(200, "charged %s")`, func(c *gin.Context) {
			c.String(http.StatusOK, "charged %s", c.Param("id"))
		}},
		{asString, "c.HTML", func(c *gin.Context) { c.HTML(http.StatusOK, "charge", receipt) }},
		{asString, "c.XML", func(c *gin.Context) { c.XML(http.StatusCreated, gin.H{"id": "1"}) }},
		{asString, "c.YAML", func(c *gin.Context) { c.YAML(http.StatusCreated, charge) }},
		{asString, "c.TOML", func(c *gin.Context) { c.TOML(http.StatusCreated, charge) }},
		{asString, "c.Data", func(c *gin.Context) { c.Data(http.StatusOK, "text/csv", []byte("a,b")) }},
		{asString, "c.Render", func(c *gin.Context) {
			c.Render(http.StatusCreated, render.Data{ContentType: "text/plain", Data: []byte(receipt)})
		}},
		{asString, "c.Writer.WriteString", func(c *gin.Context) {
			c.Writer.WriteHeader(http.StatusCreated)
			_, _ = c.Writer.WriteString(receipt)
		}},
		{asString, "c.SetCookie; c.String", func(c *gin.Context) {
			c.SetCookie("charge", "1", 60, "/", "", true, true)
			c.String(http.StatusOK, receipt)
		}},
		{asFile, "c.File", func(c *gin.Context) { c.File("go.mod") }},
		{asFile, "c.FileFromFS", func(c *gin.Context) { c.FileFromFS("go.mod", http.Dir(".")) }},
		{asFile, "c.FileAttachment", func(c *gin.Context) { c.FileAttachment("go.mod", "receipt") }},
		{asFile, "c.File of a file that is missing", func(c *gin.Context) { c.File("none") }},
		{asFile, "c.DataFromReader", func(c *gin.Context) {
			c.DataFromReader(http.StatusOK, int64(len(receipt)), "text/plain", strings.NewReader(receipt),
				map[string]string{"Content-Disposition": "attachment"})
		}},
		{redirecting, `c.Redirect(303, "/done")`, func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/done") }},
		{streaming, "c.Stream", func(c *gin.Context) {
			n := 0
			c.Stream(func(w io.Writer) bool {
				n++
				_, _ = io.WriteString(w, "charged ")
				return n < 3
			})
		}},
		{streaming, "c.SSEvent", func(c *gin.Context) {
			for range 3 {
				c.SSEvent("charge", charge)
				c.Writer.Flush()
			}
		}},
		{statusOnly, "c.Status(204)", func(c *gin.Context) { c.Status(http.StatusNoContent) }},
		{statusOnly, "c.Status(402)", func(c *gin.Context) { c.Status(http.StatusPaymentRequired) }},
		{statusOnly, "c.Writer.WriteHeaderNow()", func(c *gin.Context) {
			c.Writer.WriteHeader(http.StatusAccepted)
			c.Writer.WriteHeaderNow()
		}},
		{silently, "return", func(*gin.Context) {}},
	} {
		d.way(w.kind, w.name, replayed, w.do)
	}
	d.add(leaving, "the handler goes on", replayed, ginLayers{}, func(s *stage, c *gin.Context) {
		if s.wait(c.Request.Context()) == nil {
			d.json(c)
		}
	})
	d.add(leaving, "c.Stream goes on", replayed, ginLayers{}, func(s *stage, c *gin.Context) {
		c.Stream(func(w io.Writer) bool {
			_, _ = io.WriteString(w, "charged ")
			return s.wait(c.Request.Context()) != nil
		})
	})
}

func (d *ginFramework) layers() {
	patiently := func(c *gin.Context) {
		if tooLong(c.Request.Context()) == nil {
			d.json(c)
		}
	}
	d.layer(timingOut, "a deadline in c.Request", runsAgain, patiently, ginTimeout)
	d.layer(recovering, "gin.Recovery", runsAgain, d.crash, gin.RecoveryWithWriter(io.Discard))
	failed := func(c *gin.Context) { _ = c.Error(errDeclined) }
	aborted := func(c *gin.Context) { _ = c.AbortWithError(http.StatusPaymentRequired, errDeclined) }
	outside, inside := ginLayers{outer: []gin.HandlerFunc{ginErrors}}, ginLayers{inner: []gin.HandlerFunc{ginErrors}}
	d.add(errorHandler, "c.Error(err), middleware outside", runsAgain, outside, ignoreGin(failed))
	d.add(errorHandler, "c.Error(err), middleware inside", replayed, inside, ignoreGin(failed))
	d.add(errorHandler, "c.AbortWithError(402, err), middleware outside", runsAgain, outside, ignoreGin(aborted))
	d.add(errorHandler, "c.AbortWithError(402, err), middleware inside", replayed, inside, ignoreGin(aborted))
	compress := []gin.HandlerFunc{gzip.Gzip(gzip.DefaultCompression)}
	for _, w := range []struct {
		name string
		do   gin.HandlerFunc
	}{
		{"c.JSON(201, charge)", d.json},
		{"c.Status(204)", func(c *gin.Context) { c.Status(http.StatusNoContent) }},
		{"c.AbortWithStatus(402)", func(c *gin.Context) { c.AbortWithStatus(http.StatusPaymentRequired) }},
	} {
		d.add(compressOut, "gin-contrib/gzip, "+w.name, replayed, ginLayers{outer: compress}, ignoreGin(w.do))
		d.add(compressIn, "gin-contrib/gzip, "+w.name, replayed, ginLayers{inner: compress}, ignoreGin(w.do))
	}
}

// ginErrors answers the errors of a chain, as the documentation of gin shows.
func ginErrors(c *gin.Context) {
	c.Next()
	if len(c.Errors) > 0 {
		c.JSON(http.StatusPaymentRequired, gin.H{"error": c.Errors.Last().Error()})
	}
}

// ginTimeout sets a deadline for the request, and answers unless the chain has answered.
func ginTimeout(c *gin.Context) {
	ctx, cancel := context.WithTimeout(c.Request.Context(), shortly)
	defer cancel()
	c.Request = c.Request.WithContext(ctx)
	c.Next()
	if ctx.Err() != nil && !c.Writer.Written() {
		c.AbortWithStatusJSON(http.StatusGatewayTimeout, gin.H{"error": "late"})
	}
}

// ginLayers are the layers around a handler.
type ginLayers struct{ outer, inner []gin.HandlerFunc }

func ignoreGin(h gin.HandlerFunc) func(*stage, *gin.Context) {
	return func(_ *stage, c *gin.Context) { h(c) }
}

func (d *ginFramework) way(k kind, name string, retry fate, h gin.HandlerFunc) {
	d.add(k, name, retry, ginLayers{}, ignoreGin(h))
}

// layer adds two ways: with a layer outside the guard, and with the layer inside.
func (d *ginFramework) layer(k kind, name string, retry fate, h, layer gin.HandlerFunc) {
	d.add(k, name+" outside", retry, ginLayers{outer: []gin.HandlerFunc{layer}}, ignoreGin(h))
	d.add(k, name+" inside", retry, ginLayers{inner: []gin.HandlerFunc{layer}}, ignoreGin(h))
}

func (d *ginFramework) add(k kind, name string, retry fate, l ginLayers, h func(*stage, *gin.Context)) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		r := gin.New()
		r.SetHTMLTemplate(template.Must(template.New("charge").Parse("<b>{{.}}</b>")))
		r.Use(l.outer...)
		if s.guarded {
			r.Use(d.mount(s.middleware(t)))
		}
		r.Use(l.inner...)
		r.POST("/charges/:id", func(c *gin.Context) {
			s.enter()
			h(s, c)
		})
		return s.listen(t, r) + "/charges/1?callback=f"
	}})
}

// Without the adapter, gin's answer bypasses the middleware, so the client gets the unguarded answer and nothing is
// stored.
func TestGinWrapped(t *testing.T) {
	t.Parallel()
	d := &ginFramework{mount: func(m guardian) gin.HandlerFunc {
		return func(c *gin.Context) {
			m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				c.Request = r
				c.Next()
			})).ServeHTTP(c.Writer, c.Request)
		}
	}}
	d.errors()
	d.aborts()
	d.answers()
	for _, w := range d.ways {
		if w.kind == leaving {
			continue
		}
		w.retry = runsAgain
		t.Run(w.name, w.test)
	}
}
