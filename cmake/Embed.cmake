# Writes OUT, a C++ file that holds the bytes of IN as gpurecover::embedded::SYMBOL.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)"
       "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include <string_view>
namespace gpurecover::embedded {
static const unsigned char bytes_of_${SYMBOL}[] = {
${bytes}0};
extern const std::string_view ${SYMBOL};
const std::string_view ${SYMBOL}(reinterpret_cast<const char*>(bytes_of_${SYMBOL}),
                                 sizeof bytes_of_${SYMBOL} - 1);
}  // namespace gpurecover::embedded
")
