# Writes OUT, a C++ file that holds the text of the PTX file IN as `extern const char kernel_ptx[]`.
file(READ ${IN} ptx)
file(WRITE ${OUT} "extern const char kernel_ptx[];\nconst char kernel_ptx[] = R\"PTX(${ptx})PTX\";\n")
